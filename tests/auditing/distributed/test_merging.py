from __future__ import annotations

import pytest

from gradcheck_suite import catalogue
from gradcheck_suite.auditing.distributed.merging import merge_ranks, packed, unpacked
from gradcheck_suite.findings import Finding, Location, Related, Report
from gradcheck_suite.reporting import report_to_text
from gradcheck_suite.severity import Severity


def found(line=3, *, message="the graph is kept", severity=None, **evidence):
    return Finding.of(
        catalogue.GRAPH_KEPT,
        message,
        detector="audit",
        severity=severity,
        location=Location("train.py", line, 5, function="train"),
        related=[Related(Location("train.py", 1), "held here")],
        hint="store loss.item()",
        evidence=evidence,
    )


def report(*findings, rank=0, size=2, not_covered=(), seen=True):
    summary = {"steps": 20, "training_seen": seen, "rank": rank, "world_size": size}
    return Report("gradcheck-suite audit", findings, summary=summary, not_covered=not_covered)


def test_a_report_arrives_as_it_was_sent():
    sent = report(found(count=3), not_covered=("a thing",))
    got = unpacked(packed(sent))
    assert got == sent


def test_one_mistake_of_all_ranks_is_told_once():
    merged = merge_ranks({0: report(found()), 1: report(found(), rank=1)}, size=2)
    assert [each.evidence["ranks"] for each in merged.findings] == [[0, 1]]
    assert "on all 2 ranks" in report_to_text(merged)
    assert "20 steps watched on each of 2 ranks" in report_to_text(merged)


def test_a_mistake_of_one_rank_names_it_and_comes_after_those_of_the_first():
    reports = {1: report(found(9), found(3), rank=1), 0: report(found(3))}
    merged = merge_ranks(reports, size=2)
    told = [(each.location.line, each.evidence["ranks"]) for each in merged.findings]
    assert told == [(3, [0, 1]), (9, [1])]
    assert "only on rank 1 of 2" in report_to_text(merged)


def test_two_mistakes_of_one_line_stay_two():
    twice = (found(message="of a"), found(message="of b"))
    merged = merge_ranks({0: report(*twice), 1: report(*twice)}, size=2)
    assert [each.message for each in merged.findings] == ["of a", "of b"]


def test_the_more_severe_of_two_ranks_is_told():
    mild = found(severity=Severity.WARNING)
    merged = merge_ranks({0: report(mild), 1: report(found())}, size=2)
    assert [each.severity for each in merged.findings] == [Severity.ERROR]


def test_what_only_some_ranks_do_not_cover_names_them():
    reports = {
        0: report(size=3, not_covered=("both", "one")),
        1: report(size=3, not_covered=("both",)),
        2: report(size=3, not_covered=("both",)),
    }
    assert merge_ranks(reports, size=3).not_covered == ("both", "on rank 0: one")


@pytest.mark.parametrize("seen", [True, False])
def test_training_was_seen_where_any_rank_has_seen_it(seen):
    reports = {0: report(seen=False), 1: report(rank=1, seen=seen)}
    assert merge_ranks(reports, size=2).summary["training_seen"] is seen


def test_a_report_of_one_rank_says_which():
    assert "20 steps watched on rank 1 of 2" in report_to_text(report(rank=1))
