"""The published figures are those that were measured."""

from __future__ import annotations

import json
from importlib import metadata

from benchmarks.__main__ import KEPT, MORE, NAMES, PAGE, page
from benchmarks.harness import as_json


def test_the_page_of_figures_is_written_from_what_was_kept():
    kept = json.loads(KEPT.read_text(encoding="utf-8"))
    assert set(kept) <= {*NAMES, *MORE}
    assert PAGE.read_text(encoding="utf-8") == page(kept)


def test_a_missed_goal_is_called_missed():
    figures = {
        "title": "Steps",
        "command": "python -m benchmarks.steps",
        "columns": ["what", "count"],
        "rows": [["steps", 3]],
        "goal": "at least 4",
        "met": False,
    }
    written = page({"audit_overhead": {"machine": "a machine", "benchmarks": [figures]}})
    assert "Goal: at least 4: missed." in written
    assert "(a machine)" in written


def test_the_versions_of_what_is_compared_are_told():
    document = json.loads(as_json([]))
    torch = f"torch {metadata.version('torch')}"
    assert document["versions"]["torch"] == metadata.version("torch")
    written = page({"audit_overhead": document, "op_db": document})
    assert written.count(torch) == 1
    assert f"{document['machine']}, with {torch}" in written
