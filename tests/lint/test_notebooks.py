from __future__ import annotations

import json

import pytest

from gradcheck_lint.notebooks import fix_notebook, lint_notebook
from tests.lint import fake_rules

_LOOP = [
    "for x in loader:\n",
    "    loss = model(x).mean()\n",
    "    loss.backward()\n",
    "    opt.step()",
]


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


def test_finding_is_on_its_line_of_the_file_and_names_the_cell():
    source = _notebook(*_CELLS)
    (finding,) = lint_notebook(source, "a.ipynb")
    assert finding.code == "GCS301"
    assert finding.message.startswith("cell 6, line 5: `opt.step()`")
    assert (finding.evidence["cell"], finding.evidence["cell_line"]) == (6, 5)
    lines = source.decode().split("\n")
    assert lines[finding.location.line - 1].strip() == '"    opt.step()"'
    assert finding.location.path == "a.ipynb"
    places = [(lines[r.location.line - 1].strip(), r.message) for r in finding.related]
    assert places[0][0] == '"    loss.backward()\\n",'
    assert places[0][1].endswith("(cell 6, line 4)")


@pytest.mark.parametrize("indent", [None, 1, 4])
def test_any_layout_of_the_file_is_read(indent):
    (finding,) = lint_notebook(_notebook(*_CELLS, indent=indent), "a.ipynb")
    assert finding.evidence["cell"] == 6


def test_source_may_be_one_string():
    cells = [(kind, "".join(source)) for kind, source in _CELLS]
    (finding,) = lint_notebook(_notebook(*cells), "a.ipynb")
    assert (finding.evidence["cell"], finding.evidence["cell_line"]) == (6, 5)


def test_cell_that_is_no_python_is_told_and_the_others_are_linted():
    broken = ("code", ["x = = 1\n"])
    source = _notebook(*_CELLS, broken)
    kept, refused = lint_notebook(source, "a.ipynb")
    assert kept.code == "GCS301"
    assert refused.code == "GCS000"
    assert "cell 7 is not valid Python" in refused.message
    assert "x = = 1" in source.decode().split("\n")[refused.location.line - 1]


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
    ],
)
def test_what_ipython_runs_is_told_from_python(lines):
    assert lint_notebook(_notebook(*_CELLS[:2], ("code", lines)), "a.ipynb") == ()


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


def test_notebooks_are_found_linted_and_fixed_by_the_command(command, tmp_path):
    cells = (*_CELLS, ("code", ["q = 1  # noqa: GCS301"]))
    (tmp_path / "a.ipynb").write_bytes(_notebook(*cells))
    done = command()
    assert "cell 6, line 5: `opt.step()`" in done.stdout
    assert "cell 7, line 1: this comment silences nothing" in done.stdout
    done = command("--fix")
    assert "1 mistake fixed in 1 file" in done.stderr
    assert '"q = 1"' in (tmp_path / "a.ipynb").read_text()
