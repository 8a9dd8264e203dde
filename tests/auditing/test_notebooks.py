"""A notebook runs under audit as one script, and what is said of it names the cell."""

from __future__ import annotations

import json

import pytest

from gradcheck_suite.auditing.script import audit_script
from gradcheck_suite.errors import UsageError
from gradcheck_suite.reporting import report_to_text
from tests import warm_python

SET_UP = """\
%matplotlib inline
import torch
weight = torch.nn.Parameter(torch.ones(3))
optimizer = torch.optim.SGD([weight], lr=0.1)
history = []"""
TRAIN = """\
for step in range(5):
    optimizer.zero_grad()
    loss = (weight ** 2).sum()
    loss.backward()
    optimizer.step()
    history.append(loss)"""


def code(source):
    return {"cell_type": "code", "metadata": {}, "outputs": [], "source": source}


def document(*cells, **others):
    markdown = {"cell_type": "markdown", "metadata": {}, "source": ["# Training"]}
    return {
        "nbformat": 4,
        "nbformat_minor": 5,
        "metadata": {"kernelspec": {"language": "python", "name": "python3"}},
        "cells": [markdown, *map(code, cells)],
        **others,
    }


@pytest.fixture
def notebook(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def write(*cells, **others):
        (tmp_path / "nb.ipynb").write_text(json.dumps(document(*cells, **others)))
        return "nb.ipynb"

    return write


def run(*words):
    return warm_python.run(["-m", "gradcheck_suite", "audit", *words])


def test_findings_name_the_cell_and_show_its_source(notebook, capfd):
    lines = TRAIN.splitlines(keepends=True)
    outcome = audit_script(notebook(SET_UP, lines))
    assert outcome.exit_status == 0
    (finding,) = outcome.report.findings
    # Cells are counted as a reader does, with those of text.
    assert finding.location.path.endswith("nb.ipynb")
    assert finding.location.cell == 3
    assert (finding.code, finding.location.line) == ("GCS201", 6)
    shown = report_to_text(outcome.report)
    assert "error GCS201 graph-kept  nb.ipynb:cell 3:6" in shown
    assert "  6 |     history.append(loss)" in shown
    assert "list `history` in module __main__" in finding.message
    assert "the oldest since the first backward," in finding.message
    told = "gradcheck-suite: note: not run, as only IPython can: cell 2, line 1 (%matplotlib)\n"
    assert capfd.readouterr().err == told


def test_an_attribute_that_a_method_in_another_cell_fills(notebook):
    trainer = (
        "class Trainer:\n    def __init__(self):\n        self.losses = []\n\n"
        "    def fit(self):\n        loss = (weight ** 2).sum()\n        optimizer.zero_grad()\n"
        "        loss.backward()\n        optimizer.step()\n        self.losses.append(loss)\n"
    )
    loop = "trainer = Trainer()\nfor _ in range(5):\n    trainer.fit()"
    (finding,) = audit_script(notebook(SET_UP, trainer, loop)).report.findings
    assert (finding.code, finding.location.line) == ("GCS201", 10)
    assert finding.location.path.endswith("nb.ipynb")
    assert finding.location.cell == 3


def test_the_command_and_its_report_in_json(notebook):
    done = run("--output-format", "json", notebook(SET_UP, TRAIN))
    assert done.returncode == 1
    (finding,) = json.loads(done.stdout)["findings"]
    assert (finding["path"], finding["cell"], finding["line"]) == ("nb.ipynb", 3, 6)


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(
    ("cells", "place", "words"),
    [
        (
            ["x = 1", "def f():\n    return 1 / 0\n", "\nf()"],
            'cell 3", line 2, in f',
            "return 1 / 0",
        ),
        (["x = 1", "y = (\n"], 'cell 3", line 1', "y = ("),
        (["x = 1", "\nimport no_such_module"], 'cell 3", line 2', "import no_such_module"),
    ],
)
def test_a_traceback_names_the_cell_and_shows_the_line(notebook, cells, place, words):
    done = run(notebook(*cells))
    assert done.returncode == 1
    assert f"nb.ipynb:{place}" in done.stderr
    assert f"\n    {words}\n" in done.stderr
    assert "gradcheck_suite" not in done.stderr


@pytest.mark.parametrize(
    ("cell", "printed", "left_out"),
    [
        ("%time print(6 * 7)", "42\n", None),
        ("%timeit -n 10 print(6 * 7)", "42\n", None),
        ("x = %time 6 * 7\nprint(x)", "42\n", None),
        ("%%time\nprint(6 * 7)", "42\n", None),
        ("\n\n%%capture out\nprint(6 * 7)", "42\n", None),
        ("%%bash\nprint(6 * 7)", "", "cell 2 (%%bash)"),
        ("!false\nprint(6 * 7)", "42\n", "cell 2, line 1 (!false)"),
        ("if 1:\n    !pip install \\\n      torch\nprint(1)", "1\n", "cell 2, line 2 (!pip)"),
        ("files = !ls *.py\nprint(files)", "None\n", "cell 2, line 1 (!ls)"),
        ("print?\nprint(1)\n?print", "1\n", "cell 2, line 1 (print?); cell 2, line 3 (?print)"),
        ("print(7\n  % 4)\nprint('''\n!ls''')", "3\n\n!ls\n", None),
        ("!echo \"it's\nprint(1)", "1\n", "cell 2, line 1 (!echo)"),
        ("display(1, 2)\nprint(get_ipython())", "1\n2\nNone\n", None),
    ],
)
def test_what_only_ipython_can_run_is_left_out_and_told(notebook, capfd, cell, printed, left_out):
    assert audit_script(notebook(cell)).exit_status == 0
    out, err = capfd.readouterr()
    note = "" if left_out is None else f"not run, as only IPython can: {left_out}\n"
    assert (out, err.removeprefix("gradcheck-suite: note: ")) == (printed, note)


def test_many_lines_of_ipython_are_one_line_of_ours(notebook, capfd):
    audit_script(notebook("\n".join(["!ls"] * 9)))
    assert capfd.readouterr().err.endswith("cell 2, line 5 (!ls); and 4 more\n")


def test_a_notebook_sees_what_a_script_sees(notebook, capfd):
    cells = [
        "from __future__ import annotations\nimport inspect, sys",
        "def f(x: no_such_type):\n    return x\nprint(inspect.getsource(f).splitlines()[0])",
        "print(sys.argv[1:], __name__, sys.modules['__main__'].f is f)",
    ]
    assert audit_script(notebook(*cells), ["--epochs", "3"]).exit_status == 0
    assert capfd.readouterr().out == "def f(x: no_such_type):\n['--epochs', '3'] __main__ True\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "nb.ipynb is not a notebook: expected JSON, got Expecting value: line 1"),
        ("x = 1\n", "is not a notebook: expected JSON"),
        ("\xff\xfe", "is not a notebook: expected JSON"),
        ("[" * 100_000, "is not a notebook: expected JSON"),
        ("[]", "is not a notebook: expected a JSON object with cells"),
        ("{}", "is not a notebook: expected a list of cells in it"),
        (
            document(cells=[{"cell_type": "code", "source": 3}]),
            "expected text as the source of cell 1",
        ),
        (
            {"nbformat": 3, "worksheets": []},
            "a notebook of format 3, expected 4; convert it: jupyter",
        ),
        (
            document(metadata={"kernelspec": {"language": "julia"}}),
            "of julia, expected one of Python",
        ),
        (document(metadata={"language_info": {"name": "R"}}), "of R, expected one of Python"),
    ],
)
def test_what_is_no_notebook_of_python_is_refused(tmp_path, monkeypatch, text, words):
    monkeypatch.chdir(tmp_path)
    data = text if isinstance(text, str) else json.dumps(text)
    (tmp_path / "nb.ipynb").write_bytes(data.encode("latin-1"))
    with pytest.raises(UsageError) as info:
        audit_script("nb.ipynb")
    assert words in str(info.value)


def test_the_command_ends_with_2_for_what_is_no_notebook(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nb.ipynb").write_text("no JSON")
    done = run("nb.ipynb")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("gradcheck-suite: error: audit: nb.ipynb is not a notebook")
