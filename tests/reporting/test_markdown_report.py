from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from gradcheck_suite import catalogue
from gradcheck_suite._addresses import page_of
from gradcheck_suite.findings import Location, Related, Report, Verdict
from gradcheck_suite.reporting import markdown
from gradcheck_suite.severity import Severity

OURS = {"<code>", "</code>", "<br>"}
BLOCKS = {
    *("heading", "paragraph", "table", "thead", "tbody", "tr", "th", "td"),
    *("bullet_list", "list_item"),
}
HOSTILE = (
    'a|b`c`**d**<img src="x">[e](f)![g](h)&lt;~~i~~$j$\\|`k|l\\`\n'
    "## smuggled\r\n```\n| x | y |\x00\x1b[31m\u202e\ud800\n</code>\n1. m"
)


PAGES = {page_of(entry.code) for entry in catalogue.ENTRIES}


class Page:
    """A report as GitHub reads it, which insists that its markup is ours."""

    def __init__(self, report):
        self.text = markdown.render(report)
        self.headings, self.tables, self.items, self.fences, self.paragraphs = [], [], [], [], []
        into = None
        in_list = 0
        reader = MarkdownIt("commonmark").enable(["table", "strikethrough"])
        for token in reader.parse(self.text):
            if token.type == "fence":
                self.fences.append((token.info, token.content))
            elif token.type == "inline":
                into.append(self._plain(token))
            else:
                kind = token.type.removesuffix("_open").removesuffix("_close")
                assert kind in BLOCKS, f"{token.type} is none of ours"
                opens = token.nesting == 1
                in_list += token.nesting if kind == "bullet_list" else 0
                if not opens:
                    continue
                if kind == "table":
                    self.tables.append([])
                elif kind == "tr":
                    into = []
                    self.tables[-1].append(into)
                elif kind == "heading":
                    into = self.headings
                elif kind == "paragraph":
                    into = self.items if in_list else self.paragraphs

    @staticmethod
    def _plain(token):
        shown = []
        for child in token.children:
            if child.type == "html_inline":
                assert child.content in OURS
            elif child.type == "link_open":
                assert child.attrs["href"] in PAGES
            elif child.type != "link_close":
                assert child.type in {"text", "text_special"}, child.type
                shown.append(child.content)
        return "".join(shown)


def test_the_whole_of_a_report(reports_of_each_kind):
    assert markdown.render(reports_of_each_kind["audit"]) == (
        "## gradcheck-suite audit: 2 errors, 1 warning in train.py\n\n"
        "12 steps watched; 1 thing not covered\n\n"
        "| code | severity | place | message |\n"
        "| --- | --- | --- | --- |\n"
        f"| [GCS301]({page_of('GCS301')}) | "
        "error | <code>train.py:9:9</code> | The gradient of fc.weight was used by "
        "step() and then added to. |\n"
        f"| [GCS201]({page_of('GCS201')}) | "
        "error | <code>train.py:11</code> | <code>total</code> holds the graph of every "
        "step. |\n"
        f"| [GCS203]({page_of('GCS203')}) | "
        "warning |  | The gradient of fc.weight was used by step() and then added to. "
        "|\n\n"
        "### GCS301 missing-zero-grad <code>train.py:9:9</code>\n\n"
        "```text\n"
        " 7 |     for x, y in loader:\n"
        " 8 |         loss = loss_fn(model(x), y)\n"
        " 9 |         loss.backward()\n"
        "   |         ^^^^^^^^^^^^^^^\n"
        "10 |         optimizer.step()\n"
        "11 |         total += loss\n"
        "```\n\n"
        "- used here: <code>train.py:10:9</code>\n"
        "- help: call <code>optimizer.zero\\_grad()</code> before <code>loss.backward()</code>\n\n"
        "### GCS201 graph-kept <code>train.py:11</code>\n\n"
        "```text\n"
        " 9 |         loss.backward()\n"
        "10 |         optimizer.step()\n"
        "11 |         total += loss\n"
        "   |         ^^^^^^^^^^^^^\n"
        "12 |     return total\n"
        "```\n\n"
        "- held here: <code>train.py:6:5</code>\n\n"
        "### not covered\n\n"
        "- the fused optimizer: its reads cannot be seen\n"
    )


@pytest.mark.parametrize("kind", ["audit", "verify", "lint", "graph"])
def test_each_kind_of_report_is_a_page(reports_of_each_kind, kind):
    report = reports_of_each_kind[kind]
    page = Page(report)
    assert page.headings[0].startswith(report.tool)
    rows = page.tables[0][1:] if report.findings else []
    assert [row[0] for row in rows] == [finding.code for finding in report.findings]


def test_verdicts_that_did_not_pass_are_listed_and_the_others_counted(reports_of_each_kind):
    page = Page(reports_of_each_kind["verify"])
    assert page.paragraphs == ["gradients: 1 pass, 1 fail, 1 inconclusive, 1 not covered"]
    assert page.tables[-1] == [
        ["verdict", "output", "with respect to", "reason"],
        ["fail", "out", "bias", "differs in 1 of 4 elements"],
        ["inconclusive", "out", "x", "a kink of relu within reach of the probe"],
        ["not covered", "out", "table", "int64 has no gradient"],
    ]


def test_errors_come_first(make_finding):
    report = Report("t", tuple(make_finding(severity=severity) for severity in reversed(Severity)))
    rows = Page(report).tables[0][1:]
    assert [row[1] for row in rows] == ["error", "warning", "note"]


def test_nothing_found_is_a_heading():
    assert markdown.render(Report("gradcheck-lint")) == "## gradcheck-lint: nothing found\n"
    report = Report("t", summary={"covered": ("a", "b")})
    assert Page(report).headings == ["t: nothing found", "covered"]
    assert Page(report).items == ["a", "b"]


def test_a_finding_without_a_place_has_an_empty_cell(make_finding):
    page = Page(Report("t", (make_finding(location=None, hint="`a` or\n`b`"),)))
    assert page.tables[0][1][2] == ""
    assert page.headings[1:] == ["GCS301 missing-zero-grad"]
    assert page.items == ["help: a orb"]
    assert page.fences == []


@pytest.mark.parametrize(
    "location",
    [Location("missing.py", 3), Location("train.py", 900), Location("<stdin>", 1, 2)],
)
def test_a_place_without_source_is_still_named(make_finding, train_file, location):
    page = Page(Report("t", (make_finding(location=location),)))
    assert f"{location.path}:{location.line}" in page.tables[0][1][2]
    assert page.fences == []
    assert len(page.headings) == 1


def frame_of(make_finding, location):
    ((info, text),) = Page(Report("t", (make_finding(location=location),))).fences
    assert info == "text"
    return text.splitlines()


@pytest.mark.parametrize(
    ("place", "marked"),
    [
        ((9,), "loss.backward()"),
        ((9, 9), "l"),
        ((9, 9, 9, 13), "loss"),
        ((9, 14, 10, 3), "backward()"),
        ((9, 400), "?"),
        ((9, 9, 9, 400), "loss.backward()"),
    ],
)
def test_the_place_is_marked(make_finding, train_file, place, marked):
    rows = frame_of(make_finding, Location("train.py", *place))
    code, under = next(pair for pair in itertools.pairwise(rows) if "^" in pair[1])
    width = len(under)
    shown = code.ljust(width, "?")[under.index("^") : width]
    assert shown == marked


def test_wide_characters_tabs_and_hidden_ones(make_finding, train_file):
    train_file.write_text("\t\u5f20\u91cf = f('\u202e')\n", encoding="utf-8")
    rows = frame_of(make_finding, Location("train.py", 1, 7, 1, 8))
    assert rows == ["1 |     \u5f20\u91cf = f('\\u202e')", "  |            ^"]


@pytest.mark.parametrize("column", [1, 4000, 9000])
def test_a_long_line_is_cut_about_its_mark(make_finding, train_file, column):
    train_file.write_text("a" * (column - 1) + "B" + "a" * (9000 - column), encoding="utf-8")
    code, under = frame_of(make_finding, Location("train.py", 1, column, 1, column + 1))
    assert len(code) < 180
    assert "..." in code
    assert code[under.index("^")] == "B"


def test_source_cannot_end_its_block(make_finding, train_file):
    train_file.write_text('"""\n```\n~~~\n```\n"""\n', encoding="utf-8")
    rows = frame_of(make_finding, Location("train.py", 3))
    assert [row[4:] for row in rows if "^" not in row] == ['"""', "```", "~~~", "```", '"""']


def test_a_place_in_a_notebook_names_its_cell(make_finding, train_file):
    finding = make_finding(location=Location("a.ipynb", 5, 1, cell=3))
    assert Page(Report("t", (finding,))).tables[0][1][2] == "a.ipynb:cell 3:5:1"


@pytest.mark.parametrize("text", ["1. a", "2) a", "- a", "+ a", "# a", "=", "---", "&lt;", "`"])
def test_text_is_shown_as_it_is(text):
    page = Page(Report("t", not_covered=(text,)))
    assert page.items == [text]


def test_hostile_text_stays_text(make_finding, unshown):
    finding = make_finding(
        code=HOSTILE,
        rule=HOSTILE,
        message=HOSTILE,
        hint=HOSTILE,
        location=Location(HOSTILE, 1),
        related=(Related(Location(HOSTILE, 1), HOSTILE),),
    )
    verdict = Verdict(HOSTILE, HOSTILE, "fail", HOSTILE)
    page = Page(Report(HOSTILE, (finding,), verdicts=(verdict,), not_covered=(HOSTILE,)))
    assert len(page.headings) == 4
    assert [[len(row) for row in table] for table in page.tables] == [[4, 4], [4, 4]]
    assert len(page.items) == 3
    assert not unshown(page.text)


@given(data=st.data())
@settings(max_examples=60, deadline=None)
@pytest.mark.slow
def test_any_report_has_its_tables_and_nothing_more(any_report, unshown, data):
    report = data.draw(any_report)
    page = Page(report)
    assert not unshown(page.text)
    listed = sum(verdict.status != "pass" for verdict in report.verdicts)
    sizes = [len(report.findings), listed]
    assert [len(table) - 1 for table in page.tables] == [size for size in sizes if size]
    assert {len(row) for table in page.tables for row in table} <= {4}
