"""Findings of a run that a comment or an option keeps back."""

from __future__ import annotations

import json
import textwrap

import pytest

import gradcheck_suite as gs
from gradcheck_suite.cli import main
from gradcheck_suite.findings import Finding, Location
from gradcheck_suite.reporting import report_to_text
from gradcheck_suite.reporting.silencing import CommentsOfSources
from gradcheck_suite.severity import Severity

_LOOP = """
import torch
import gradcheck_suite as gs

def train():
    weight = torch.randn(3, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for step in range(4):
        (weight ** 2).sum().backward()
        optimizer.step({inside}
        ){comment}
"""


def _audited(tmp_path, comment="", inside="", **options):
    path = tmp_path / "loop.py"
    path.write_text(_LOOP.format(comment=comment, inside=inside), encoding="utf-8")
    names: dict[str, object] = {}
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), names)
    with gs.audit(report=False, **options) as session:
        names["train"]()
    return session.report


def _codes(report):
    return [finding.code for finding in report.findings]


def test_without_a_comment_it_is_told(tmp_path):
    report = _audited(tmp_path)
    assert _codes(report) == ["GCS301"]
    assert "silenced" not in report.summary


@pytest.mark.parametrize(
    "comment",
    [
        "# gradcheck: ignore[GCS301]",
        "# gradcheck: ignore[data-write, missing-zero-grad] as the paper has it",
        "# noqa: E501, gcs301",
        "# noqa  # gradcheck: ignore[GCS301]",
        "# gradcheck: ignore[GCS301]  # noqa",
    ],
)
@pytest.mark.parametrize("where", ["comment", "inside"])
def test_a_comment_that_names_it_silences_it(tmp_path, comment, where):
    report = _audited(tmp_path, **{where: f"  {comment}"})
    assert _codes(report) == []
    assert report.summary["silenced"] == 1
    assert "nothing found (4 steps watched; 1 finding silenced" in report_to_text(report)


@pytest.mark.parametrize(
    "comment", ["# noqa", "# noqa: E501", "# gradcheck: ignore[GCS201]", "# GCS301", "#"]
)
def test_other_comments_silence_nothing(tmp_path, comment):
    assert _codes(_audited(tmp_path, comment=f"  {comment}")) == ["GCS301"]


def test_a_comment_that_names_no_mistake_is_told(tmp_path):
    for comment, meant in (
        ("# gradcheck: ignore[GCS3O1]", "names 'GCS3O1', and no mistake has that"),
        ("# gradcheck: ignore[GCS201, missing-zero-grat]", "did you mean missing-zero-grad"),
    ):
        report = _audited(tmp_path, comment=f"  {comment}")
        assert _codes(report) == ["GCS301"]
        (said,) = (line for line in report.not_covered if line.startswith("the comment at "))
        assert "loop.py:11 names " in said
        assert meant in said
    for comment in (
        "# gradcheck: ignore[GCS001, GCS201]",
        "# noqa: E501, GCS201",
        "# gradcheck: ignore[GCS301, unused-suppression]",
    ):
        text = f"  {comment}\n    '# gradcheck: ignore[GCS3O1]'"
        report = _audited(tmp_path, comment=text)
        assert not [line for line in report.not_covered if "comment" in line]


def test_a_comment_of_the_next_statement_silences_nothing(tmp_path):
    after = "\n    print()  # gradcheck: ignore[GCS301]"
    assert _codes(_audited(tmp_path, comment=after)) == ["GCS301"]


@pytest.mark.parametrize("ignore", [["GCS301"], ("missing-zero-grad",), {"gcs301"}])
def test_an_option_silences_it_everywhere(tmp_path, ignore):
    report = _audited(tmp_path, ignore=ignore)
    assert _codes(report) == []
    assert report.summary["silenced"] == 1


def test_an_option_for_others_silences_nothing(tmp_path):
    assert _codes(_audited(tmp_path, ignore=["GCS302", "GCS201"])) == ["GCS301"]


@pytest.mark.parametrize(
    ("ignore", "says"),
    [
        ("GCS301", r"must be a list of codes or names, got 'GCS301'; give \['GCS301'\]"),
        (
            ["GCS3O1"],
            "ignore has 'GCS3O1', and no mistake has that code or name; did you mean GCS301",
        ),
        (["missing-zero-grat"], "did you mean missing-zero-grad"),
    ],
)
def test_what_is_no_mistake_is_told(ignore, says):
    with pytest.raises(gs.UsageError, match=says):
        gs.audit(ignore=ignore)


def test_the_command_has_the_option(tmp_path, monkeypatch, capfd):
    script = tmp_path / "train.py"
    script.write_text(_LOOP.format(comment="", inside="") + "\ntrain()\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    words = ["audit", "--output-format", "json", "--no-status"]
    assert main([*words, "train.py"]) == 1
    assert [each["code"] for each in json.loads(capfd.readouterr().out)["findings"]] == ["GCS301"]
    assert main([*words, "--ignore", "GCS702, missing-zero-grad", "train.py"]) == 0
    report = json.loads(capfd.readouterr().out)
    assert report["findings"] == []
    assert report["summary"]["silenced"] == 1
    assert main([*words, "--ignore", "GCS3O1", "train.py"]) == 2
    assert "'GCS3O1', and no mistake has" in capfd.readouterr().err


def _finding(path, line, cell=None):
    place = Location(str(path), line, cell=cell)
    return Finding("GCS301", "missing-zero-grad", Severity.ERROR, "", "audit", place)


def test_what_cannot_be_read_silences_nothing(tmp_path):
    comments = CommentsOfSources()
    broken = tmp_path / "broken.py"
    broken.write_text("step()  # noqa: GCS301\nx = (\n step()  # noqa: GCS301\n", encoding="utf-8")
    assert comments.silence(_finding(broken, 1))
    assert not comments.silence(_finding(broken, 3))
    assert not comments.silence(_finding(tmp_path / "no_such_file.py", 1))
    nowhere = Finding("GCS301", "missing-zero-grad", Severity.ERROR, "", "audit", None)
    assert not comments.silence(nowhere)


def test_a_string_is_no_comment(tmp_path):
    source = tmp_path / "source.py"
    text = '''\
        x = "# noqa: GCS301"
        y = """
        # noqa: GCS301
        """
        # noqa: GCS301
        z = 1
    '''
    source.write_text(textwrap.dedent(text), encoding="utf-8")
    comments = CommentsOfSources()
    assert not any(comments.silence(_finding(source, line)) for line in range(1, 7))


def test_a_cell_of_a_notebook_has_comments_too(tmp_path):
    lines = ["%matplotlib inline\n", "a = 1\n", "step()  # gradcheck: ignore[GCS301]\n"]
    cells = [
        {"cell_type": "code", "source": source, "metadata": {}, "outputs": []}
        for source in (["step()\n"], lines[1:])
    ]
    notebook = tmp_path / "book.ipynb"
    notebook.write_text(json.dumps({"cells": cells, "nbformat": 4, "metadata": {}}))
    comments = CommentsOfSources()
    assert comments.silence(_finding(notebook, 2, cell=2))
    assert not comments.silence(_finding(notebook, 1, cell=1))
