"""What must not grow with ranks and steps; benchmarks.large_jobs has the figures."""

from __future__ import annotations

import pytest

from benchmarks.large_jobs import simulate, train_on_plain


def test_a_rank_hands_in_the_same_however_many_there_are():
    sizes = {}
    for ranks in (9, 36):
        store, report, _ = simulate(ranks, steps=12)
        (finding,) = report.findings
        assert (finding.code, finding.evidence["ranks"]) == ("GCS801", [7])
        assert finding.evidence["world_size"] == ranks
        assert report.not_covered == ()
        # Of each rank 12 steps, that it began, and its report.
        assert store.calls["set"] == ranks * 14
        assert store.calls["get"] <= store.calls["check"] < ranks * 15
        sizes[ranks] = store.written / ranks
    assert sizes[36] == pytest.approx(sizes[9], rel=0.01)


def test_of_later_steps_few_are_handed_in():
    few, many = (simulate(9, steps)[0] for steps in (16, 1_024))
    assert many.calls["set"] == few.calls["set"] + 9 * 8 * 6


@pytest.mark.slow
def test_an_audit_holds_little_more_after_thousands_of_steps():
    seen = train_on_plain(6_000, windows=3)
    grown = seen[-1][1] - seen[0][1]
    # 16 bytes for each of 4,000 steps, which a bound ends; a node kept for each would take 100.
    assert grown < 4_000 * 40 / 1024
