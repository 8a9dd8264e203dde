from __future__ import annotations

import html.parser
import io
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradcheck_suite import catalogue
from gradcheck_suite._addresses import DOCUMENTATION, page_of
from gradcheck_suite.findings import Location, Report, Verdict
from gradcheck_suite.reporting import html as page
from gradcheck_suite.reporting import write_report

VOID = {"meta", "br"}
OURS = {
    *("html", "head", "meta", "title", "style", "body", "main", "h1", "h2", "p", "b"),
    *("section", "span", "code", "table", "thead", "tbody", "tr", "th", "td", "mark", "details"),
    *("summary", "ul", "li", "br", "a"),
}
PAGES = {page_of(entry.code) for entry in catalogue.ENTRIES}


class Page(html.parser.HTMLParser):
    """Reads a page, and insists that its elements nest and are those that we write."""

    def __init__(self, text):
        super().__init__()
        self.open = []
        self.texts = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        assert tag in OURS, f"<{tag}> is none of ours"
        for name, value in attributes:
            assert not name.startswith("on")
            assert name != "src"
            assert name != "href" or value in PAGES
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
        if tag in {"th", "td", "p", "h1", "h2", "summary", "li", "title"}:
            self.texts.append(" ")

    def handle_data(self, data):
        if "style" not in self.open:
            self.texts.append(data)

    @property
    def text(self):
        return " ".join("".join(self.texts).split())


@pytest.mark.parametrize("kind", ["audit", "verify", "lint", "graph"])
def test_each_kind_of_report_is_a_page(reports_of_each_kind, kind):
    report = reports_of_each_kind[kind]
    text = Page(page.render(report)).text
    assert report.tool in text
    for finding in report.findings:
        assert finding.rule in text


@given(data=st.data())
@settings(max_examples=60, deadline=None)
@pytest.mark.slow
def test_no_text_can_break_out_of_the_page(any_report, unshown, data):
    document = page.render(data.draw(any_report))
    Page(document)
    document.encode("utf-8")
    assert not unshown(document)


def test_the_page_asks_nothing_of_the_network(reports_of_each_kind):
    for report in reports_of_each_kind.values():
        document = page.render(report)
        assert "default-src 'none'" in document
        # A link is followed by a reader alone.
        without_links = re.sub(
            f'<a href="{DOCUMENTATION}/catalogue/GCS[0-9]{{3}}.html">', "", document
        )
        assert not re.search(r"https?://|url\(|@import|<script", without_links)


def test_a_finding_shows_message_line_related_place_help_and_reason(reports_of_each_kind):
    document = page.render(reports_of_each_kind["audit"])
    text = Page(document).text
    assert "error GCS301 missing-zero-grad train.py:9:9 in train_epoch" in text
    assert "<mark>loss.backward()</mark>" in document
    assert "used here train.py:10:9" in text
    assert "help call optimizer.zero_grad() before loss.backward()" in text
    assert "why GCS301 matters" in text
    assert f'<a href="{page_of("GCS301")}">what GCS301 is' in document
    assert "count 1,200" in text


def test_errors_come_first(make_finding, reports_of_each_kind):
    text = Page(page.render(reports_of_each_kind["audit"])).text
    assert text.index("missing-zero-grad") < text.index("retain-graph")


def test_verdicts_that_need_a_reader_come_first_and_many_passes_are_folded():
    verdicts = [Verdict("out", f"w{i}", "pass") for i in range(20)]
    verdicts.append(Verdict("out", "bias", "fail", "differs in 1 of 4 elements"))
    document = page.render(Report("t", verdicts=tuple(verdicts)))
    text = Page(document).text
    assert "20 gradients passed" in text
    assert text.index("differs in 1 of 4 elements") < text.index("20 gradients passed")
    assert "<details>" in document
    few = page.render(Report("t", verdicts=tuple(verdicts[:3])))
    assert "<details>" not in few


@pytest.mark.parametrize(
    "location",
    [Location("missing.py", 3), Location("train.py", 900), Location("<stdin>", 1, 2)],
)
def test_a_place_without_source_is_still_named(make_finding, train_file, location):
    document = page.render(Report("t", (make_finding(location=location),)))
    assert f":{location.line}" in Page(document).text
    assert 'class="source"' not in document


@pytest.mark.parametrize(
    ("location", "marked"),
    [
        (Location("train.py", 9, 9, 10, 3), "loss.backward()"),
        (Location("train.py", 9, 9), "l"),
        (Location("train.py", 9, 9, 9, 13), "loss"),
    ],
)
def test_the_marked_text_is_that_of_the_range(make_finding, train_file, location, marked):
    document = page.render(Report("t", (make_finding(location=location),)))
    assert f"<mark>{marked}</mark>" in document


def test_a_line_without_column_is_marked_as_a_whole(make_finding, train_file):
    document = page.render(Report("t", (make_finding(location=Location("train.py", 9)),)))
    assert '<tr class="marked"><th>9</th>' in document
    assert "<mark>" not in document


def test_figures_are_readable():
    report = Report("t", summary={"seed": 1234567, "peak_bytes": 3 * 1024**2, "nodes": 12345})
    text = Page(page.render(report)).text
    assert "seed 1234567" in text
    assert "peak bytes 3.0 MiB" in text
    assert "nodes 12,345" in text


def test_write_report_knows_the_format(reports_of_each_kind):
    stream = io.StringIO()
    write_report(reports_of_each_kind["lint"], output_format="html", stream=stream)
    assert stream.getvalue().startswith("<!doctype html>")


def test_what_was_covered_stands_before_what_was_not():
    report = Report(
        tool="gradcheck-suite verify",
        summary={"evaluations": 12, "covered": ("inputs: strided", "<order 2>")},
        not_covered=("block sizes",),
    )
    text = Page(page.render(report)).text
    assert "covered inputs: strided <order 2> not covered block sizes figures evaluations" in text
    assert text.count("strided") == 1
