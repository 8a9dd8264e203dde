from __future__ import annotations

from benchmarks.lint_recall import SOURCES, found_in, score


def test_shipped_sources_are_clean():
    for path in sorted(SOURCES.glob("*.py")):
        assert not found_in(path.read_text(encoding="utf-8")), path


def test_every_seeded_mistake_is_found():
    scores = score(sorted(SOURCES.glob("*.py")))
    assert len(scores) >= 20
    assert [row for row in scores if row.found != row.total] == []


def test_a_mutant_that_no_rule_sees_counts_as_missed(monkeypatch):
    monkeypatch.setattr("benchmarks.lint_recall.lint_source", lambda *_: ())
    assert all(row.found == 0 < row.total for row in score(sorted(SOURCES.glob("*.py"))))
