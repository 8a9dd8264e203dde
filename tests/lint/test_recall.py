from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import pytest

from benchmarks import lint_recall
from benchmarks.lint_recall import SOURCES, findings_in, score, try_file

if TYPE_CHECKING:
    from pathlib import Path


def test_shipped_sources_are_clean():
    for path in sorted(SOURCES.glob("*.py")):
        assert not findings_in(path.read_text(encoding="utf-8")), path


@pytest.mark.slow
def test_every_seeded_mistake_is_found():
    scores = score(sorted(SOURCES.glob("*.py")))
    assert len(scores) >= 20
    assert [row for row in scores if row.found != row.total] == []


def test_a_mutant_that_no_rule_sees_counts_as_missed(monkeypatch):
    monkeypatch.setattr(lint_recall, "lint_source", lambda *_: ())
    assert all(row.found == 0 < row.total for row in score(sorted(SOURCES.glob("*.py"))))


@pytest.mark.slow
def test_a_finding_elsewhere_in_the_function_does_not_count(monkeypatch):
    real = lint_recall.lint_source

    def at_line_one(source, path):
        for finding in real(source, path):
            assert finding.location is not None
            yield replace(finding, location=replace(finding.location, line=1), related=())

    monkeypatch.setattr(lint_recall, "lint_source", lambda *args: tuple(at_line_one(*args)))
    found = sum(row.found for row in score(sorted(SOURCES.glob("*.py"))))
    total = sum(row.total for row in score(sorted(SOURCES.glob("*.py"))))
    assert found < total / 2


@pytest.mark.slow
def test_a_run_goes_on_where_an_earlier_one_was_stopped(tmp_path, monkeypatch, capsys):
    state = tmp_path / "state.jsonl"
    first, *_ = sorted(SOURCES.glob("*.py"))
    state.write_text(json.dumps(asdict(try_file(first))) + "\n")
    tried: list[Path] = []
    monkeypatch.setattr(lint_recall, "try_file", lambda path: tried.append(path) or try_file(path))
    monkeypatch.setattr("sys.argv", ["lint_recall", "--state", str(state), "--part", "1/1"])
    assert lint_recall.run_as_command(lint_recall.run, lint_recall._options) == 0
    assert first not in tried
    assert len(tried) + 1 == len(state.read_text().splitlines())
    assert "false alarms before any mutation" in capsys.readouterr().out
