from __future__ import annotations

import io
import json
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from gradcheck_lint.notebooks import fix_notebook, lint_notebook
from gradcheck_suite.findings import Report
from gradcheck_suite.reporting import write_report
from gradcheck_suite.reporting.source import SourceLines
from tests.lint import fake_rules

_LOOP = [
    "for x in loader:\n",
    "    loss = model(x).mean()\n",
    "    loss.backward()\n",
    "    opt.step()",
]

_LEAF = "import torch\nw = torch.ones(3, requires_grad=True)\nw += 1\n"


def _notebook(*cells, indent=1, language="python", **changes):
    document = {
        "cells": [
            {
                "cell_type": kind,
                "execution_count": None,
                "metadata": {},
                "outputs": [{"text": ["import torch\n", "loss.backward()\n"]}],
                "source": source,
            }
            for kind, source in cells
        ],
        "metadata": {"language_info": {"name": language}},
        "nbformat": 4,
        "nbformat_minor": 5,
        **changes,
    }
    return (json.dumps(document, indent=indent, ensure_ascii=False) + "\n").encode()


_CELLS = (
    ("markdown", ["# torch\n", "loss.backward()"]),
    ("code", ["import torch\n", "%matplotlib inline\n", "opt = torch.optim.SGD(ps, 1)"]),
    ("code", []),
    ("code", ["!pip install x\n", "files = !ls\n", "model = torch.nn.Linear(1, 1)\n", "model?"]),
    ("code", ["%%bash\n", "for x in loader: do\n", "done"]),
    ("code", ["%%time\n", *_LOOP]),
)


def _in_file(source, tmp_path, location):
    """Return the line of the file that reports point at."""
    path = tmp_path / "a.ipynb"
    path.write_bytes(source)
    place = SourceLines().in_file(replace(location, path=str(path)))
    return source.decode().split("\n")[place.line - 1].strip()


def test_finding_is_on_its_line_of_its_cell(tmp_path):
    source = _notebook(*_CELLS)
    (finding,) = lint_notebook(source, "a.ipynb")
    assert finding.code == "GCS301"
    assert finding.message.startswith("`opt.step()`")
    here = finding.location
    assert (here.path, here.cell, here.line, here.column) == ("a.ipynb", 6, 5, 5)
    assert (here.end_line, here.end_column) == (5, 15)
    assert _in_file(source, tmp_path, here) == '"    opt.step()"'
    there = finding.related[0].location
    assert (there.cell, there.line) == (6, 4)
    assert _in_file(source, tmp_path, there) == '"    loss.backward()\\n",'


@pytest.mark.parametrize("indent", [None, 1, 4])
def test_any_layout_of_the_file_is_read(indent):
    (finding,) = lint_notebook(_notebook(*_CELLS, indent=indent), "a.ipynb")
    assert (finding.location.cell, finding.location.line) == (6, 5)


def test_source_may_be_one_string():
    cells = [(kind, "".join(source)) for kind, source in _CELLS]
    (finding,) = lint_notebook(_notebook(*cells), "a.ipynb")
    assert (finding.location.cell, finding.location.line) == (6, 5)


@pytest.mark.parametrize(
    "lines",
    [
        ["import torch\nw = torch.ones(3, requires_grad=True)\n", "w +", "= 1"],
        _LEAF.splitlines(True),
    ],
)
def test_strings_of_a_source_need_not_be_its_lines(tmp_path, lines):
    source = _notebook(("code", lines))
    (finding,) = lint_notebook(source, "a.ipynb")
    assert (finding.code, finding.location.line) == ("GCS101", 3)
    assert "w +" in _in_file(source, tmp_path, finding.location)


def test_cell_that_is_no_python_is_told_and_the_others_are_linted():
    broken = ("code", ["x = 1\n", "x = = 1\n"])
    source = _notebook(*_CELLS, broken)
    kept, refused = lint_notebook(source, "a.ipynb")
    assert kept.code == "GCS301"
    assert refused.code == "GCS000"
    assert refused.message == (
        "this cell was not linted: it is not valid Python; the other cells were"
    )
    assert (refused.location.cell, refused.location.line) == (7, 2)


_INDENTED = (
    "code",
    ["\n", "    w = torch.ones(3, requires_grad=True)\n", "    w += 1\n", "    !ls\n"],
)


def test_indent_that_ipython_takes_away_is_none():
    (finding,) = lint_notebook(_notebook(*_CELLS[:2], _INDENTED), "a.ipynb")
    here = finding.location
    assert (finding.code, here.cell, here.line) == ("GCS101", 3, 3)
    assert (here.column, here.end_column) == (5, 11)


@pytest.mark.parametrize("lines", [["  x = 1\n", "y = 2"], ["x = 1\n", "  y = 2"]])
def test_indent_of_some_lines_alone_is_no_python(lines):
    (finding,) = lint_notebook(_notebook(*_CELLS[:2], ("code", lines)), "a.ipynb")
    assert finding.code == "GCS000"


def test_fixes_of_an_indented_cell_keep_its_indent(monkeypatch):
    fake_rules.install(monkeypatch)
    before = _notebook(
        *_CELLS[:2], ("code", ["  !ls\n", "  z = unwrap(y)\n", "\n", "  if z:\n", "    f()"])
    )
    after = _notebook(*_CELLS[:2], ("code", ["  !ls\n", "  z = y\n", "\n", "  if z:\n", "    f()"]))
    assert fix_notebook(before, "a.ipynb").source == after


@pytest.mark.parametrize(
    "lines",
    [
        ["print(\n", "    'took %d s'\n", "    % (3,)\n", ")"],
        ["!ls\n", "x = [7\n", "% 4, '''\n", "%ls\n", "!ls'''\n", "% (b\n", "% 2)]"],
        ["x = 7 \\\n", "  % 4"],
        ["text = '''it's\n", "% done '''  # it's (\n", "%time\n", "x = 1"],
        ["s = 'a \\' (' + \"b [\"\n", "!ls\n", 't = """\\"""""" + "{"\n', "%ls"],
        ["!pip install a \\\n", "    b \\\n", "    'c\n", "x = 1"],
        ["if x:\n", "    files = !ls \\\n", "        -l (\n", "    y = 1"],
        ["f(a)\n", "?f\n", "f??\n", "a.b?"],
        ["\n", "  \n", "%%bash\n", "for x in loader: do (\n", "done"],
        ["pip install -r requirements.txt"],
        ["\n", "cd ~/data/x"],
    ],
)
def test_what_ipython_runs_is_told_from_python(lines):
    assert lint_notebook(_notebook(*_CELLS[:2], ("code", lines)), "a.ipynb") == ()


@pytest.mark.parametrize(
    "lines", [["pip install x\n", "y = 1"], ["python -u run.py"], ["pip = = 1"]]
)
def test_a_command_without_its_mark_is_one_alone_in_its_cell(lines):
    (finding,) = lint_notebook(_notebook(*_CELLS[:2], ("code", lines)), "a.ipynb")
    assert finding.code == "GCS000"


def test_what_ipython_runs_is_written_back_as_it_was(monkeypatch):
    fake_rules.install(monkeypatch)
    start, end = ["!pip install a \\\n", "    b\n"], ["z = f(\n", "    '%d'\n", "    % 3)\n", "%ls"]
    before = _notebook(*_CELLS[:2], ("code", [*start, "z = unwrap(y)\n", *end]))
    fixed = fix_notebook(before, "a.ipynb")
    assert fixed.source == _notebook(*_CELLS[:2], ("code", [*start, "z = y\n", *end]))


def test_other_languages_are_left_alone():
    assert lint_notebook(_notebook(*_CELLS, language="julia"), "a.ipynb") == ()


@pytest.mark.parametrize(
    "source",
    [
        b"torch",
        b"[]",
        b'{"torch": 1}',
        b'{"cells": [1]}',
        b'{"cells": [{"cell_type": "code", "source": 1}]}',
        b"\xff torch",
        b"[" * 100_000,
        b'{"worksheets": [], "nbformat": 3}',
    ],
)
def test_what_is_no_notebook_is_one_finding(source):
    (finding,) = lint_notebook(source, "a.ipynb")
    assert finding.code == "GCS000"
    assert fix_notebook(source, "a.ipynb").source == source


def test_notebook_without_code_is_clean():
    assert lint_notebook(_notebook(("markdown", ["torch"])), "a.ipynb") == ()


@pytest.mark.parametrize("indent", [None, 1])
def test_fixes_are_written_back_and_nothing_else_changes(monkeypatch, indent):
    fake_rules.install(monkeypatch)
    head = ("code", ["import torch\n", "%time x = unwrap(y)\n", "s = 'é'"])
    before = _notebook(head, ("code", ["a = 1\n", "z = unwrap(y)\n", "!ls"]), indent=indent)
    after = _notebook(head, ("code", ["a = 1\n", "z = y\n", "!ls"]), indent=indent)
    fixed = fix_notebook(before, "a.ipynb")
    assert fixed.source == after
    assert len(fixed.fixed) == 1
    assert fix_notebook(after, "a.ipynb").source == after


def test_fix_may_add_lines_and_empty_a_cell(monkeypatch):
    fake_rules.install(monkeypatch)
    before = _notebook(("code", "import torch\nannounce()"), ("code", "drop()"))
    fixed = json.loads(fix_notebook(before, "a.ipynb").source)
    assert [cell["source"] for cell in fixed["cells"]] == [
        "import torch\nprint('next')\nannounced()",
        "",
    ]


@pytest.mark.slow
def test_notebooks_are_found_linted_and_fixed_by_the_command(command, tmp_path):
    cells = (*_CELLS, ("code", ["q = 1  # noqa: GCS301"]))
    (tmp_path / "a.ipynb").write_bytes(_notebook(*cells))
    done = command()
    assert "a.ipynb:cell 6:5:5: GCS301 [error] `opt.step()`" in done.stdout
    assert "a.ipynb:cell 7:1:8: GCS001 [warning] this comment silences nothing" in done.stdout
    done = command("--fix")
    assert "1 mistake fixed in 1 file" in done.stderr
    assert '"q = 1"' in (tmp_path / "a.ipynb").read_text()


@pytest.fixture
def linted(command, tmp_path):
    """Lint a notebook with one finding, and return the report in a format."""
    (tmp_path / "a.ipynb").write_bytes(_notebook(*_CELLS))
    return lambda output_format: command("--output-format", output_format).stdout


def test_people_see_the_source_of_the_cell(linted):
    shown = linted("full")
    assert "a.ipynb:cell 6:5:5" in shown
    for line in ("  4 |     loss.backward()", "  5 |     opt.step()", "    |     ^^^^^^^^^^"):
        assert line in shown.replace("\N{BOX DRAWINGS LIGHT VERTICAL}", "|").splitlines()
    assert '"' not in shown


def test_pages_show_the_source_of_the_cell(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.ipynb").write_bytes(_notebook(*_CELLS))
    findings = lint_notebook(_notebook(*_CELLS), "a.ipynb")
    stream = io.StringIO()
    write_report(Report("gradcheck-lint", findings), output_format="html", stream=stream)
    assert '<span class="where">a.ipynb:cell 6:5:5</span>' in stream.getvalue()
    assert "<th>5</th><td>    <mark>opt.step()</mark></td>" in stream.getvalue()
    assert "<th>2</th><td><mark>for x in loader:</mark></td>" in stream.getvalue()


def test_markdown_shows_the_source_of_the_cell(linted):
    lines = linted("markdown").splitlines()
    assert "| <code>a.ipynb:cell 6:5:5</code> |" in lines[6]
    for line in ("4 |     loss.backward()", "5 |     opt.step()", "  |     ^^^^^^^^^^"):
        assert line in lines


def test_programs_are_told_the_cell(linted):
    (finding,) = json.loads(linted("json"))["findings"]
    place = [finding[key] for key in ("path", "cell", "line", "column", "end_line", "end_column")]
    assert place == ["a.ipynb", 6, 5, 5, 5, 15]
    assert (finding["related"][0]["cell"], finding["related"][0]["line"]) == (6, 4)


@pytest.mark.slow
def test_services_get_the_line_of_the_file_and_are_told_the_cell(linted, tmp_path):
    lines = (tmp_path / "a.ipynb").read_text("utf-8").split("\n")
    number = lines.index('    "    opt.step()"') + 1
    words = "cell 6, line 5: `opt.step()`"

    (result,) = json.loads(linted("sarif"))["runs"][0]["results"]
    assert result["message"]["text"].startswith(words)
    assert result["locations"][0]["physicalLocation"]["region"] == {
        "startLine": number,
        "endLine": number,
    }
    related = result["relatedLocations"][0]
    assert related["message"]["text"].startswith("cell 6, line 4: ")
    assert related["physicalLocation"]["region"]["startLine"] == number - 1

    (issue,) = json.loads(linted("gitlab"))
    assert issue["description"].startswith(f"GCS301 {words}")
    assert issue["location"] == {"path": "a.ipynb", "lines": {"begin": number}}

    annotation = linted("github")
    assert annotation.startswith(f"::error file=a.ipynb,line={number},endLine={number},title=")
    assert f"::{words}" in annotation
    assert "a.ipynb:cell 6:4:5" in annotation

    (case,) = ElementTree.fromstring(linted("junit")).iter("testcase")
    assert case.get("line") == str(number)
    assert case.get("name").endswith(" a.ipynb:cell 6:5:5")


@pytest.mark.slow
def test_known_findings_stay_known_when_cells_move(command, tmp_path):
    (tmp_path / "a.ipynb").write_bytes(_notebook(*_CELLS))
    command("--baseline", "known.json", "--write-baseline")
    before = json.loads(command("--output-format", "gitlab").stdout)[0]["fingerprint"]
    moved = (("markdown", ["new"]), ("code", ["x = 1"]), *_CELLS[:-1])
    last = ("code", [*_CELLS[-1][1], "\n", "print(1)"])
    (tmp_path / "a.ipynb").write_bytes(_notebook(*moved, last))
    assert json.loads(command("--output-format", "gitlab").stdout)[0]["fingerprint"] == before
    done = command("--baseline", "known.json")
    assert (done.returncode, done.stdout) == (0, "gradcheck-lint: nothing found (1 file checked)\n")


def test_findings_from_the_cache_know_their_cell(command, tmp_path):
    (tmp_path / "a.ipynb").write_bytes(_notebook(*_CELLS))
    first, second = command().stdout, command().stdout
    assert first == second
    assert "a.ipynb:cell 6:5:5" in second


def test_what_the_editor_sends_needs_no_file(command):
    text = _notebook(*_CELLS).decode()
    done = command("-", "--stdin-filename", "b.ipynb", "--output-format", "github", stdin=text)
    assert done.stdout.startswith("::error file=b.ipynb,line=1,title=")
    assert "cell 6, line 5" in done.stdout
