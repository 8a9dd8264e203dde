"""The benchmark of known mistakes and traps, over a repository made for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from benchmarks import lint_named
from benchmarks.lint_named import MISTAKES, TRAPS, Place, findings, scores
from gradcheck_lint.rules import RULES

if TYPE_CHECKING:
    from pathlib import Path

_SOURCE = "import torch\nw = torch.ones(1, requires_grad=True)\nw += 1\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "a+b").mkdir()
    (tmp_path / "a+b" / "x.py").write_text(_SOURCE)
    return tmp_path


def test_a_place_holds_the_findings_of_its_rule_on_its_lines(folder: Path) -> None:
    place = Place("GCS101", "a/b", "x.py", 3, 3)
    (found,) = findings(place, folder)
    assert place.holds(found)
    assert not Place("GCS101", "a/b", "x.py", 1, 2).holds(found)
    assert not Place("GCS301", "a/b", "x.py").holds(found)
    assert str(place) == "GCS101 a/b x.py:3"


def test_what_is_missed_and_what_is_hit_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(lint_named, "MISTAKES", (Place("GCS301", "a/b", "x.py"),))
    monkeypatch.setattr(lint_named, "TRAPS", (Place("GCS101", "a/b", "x.py"),))
    arguments = type("Arguments", (), {"folder": folder})
    assert not lint_named.run(arguments).met
    assert capsys.readouterr().err == "missed: GCS301 a/b x.py:1\ntrap: GCS101 a/b x.py:1\n"


def test_every_place_names_a_rule_and_none_stands_twice() -> None:
    known = {rule.code for rule in RULES}
    assert {place.code for place in (*MISTAKES, *TRAPS)} <= known
    assert len(set(MISTAKES)) == len(MISTAKES)
    assert len(set(TRAPS)) == len(TRAPS)
    assert scores(0, 0).met
    assert not scores(1, 0).met
    assert not scores(0, 1).met
