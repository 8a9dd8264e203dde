from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from gradcheck_suite import catalogue
from gradcheck_suite.findings import (
    Finding,
    FindingsError,
    Location,
    Report,
    Severity,
    merge_reports,
)


def finding(entry=catalogue.MISSING_ZERO_GRAD, *, detector="lint", line=3, path="train.py", **more):
    return Finding.of(entry, "a message", detector=detector, location=Location(path, line), **more)


def test_a_finding_takes_its_names_and_severity_from_the_catalogue():
    made = finding()
    assert (made.code, made.rule) == ("GCS301", "missing-zero-grad")
    assert made.severity is catalogue.MISSING_ZERO_GRAD.severity


def test_a_finding_may_be_milder_than_its_entry_but_not_worse():
    assert finding(severity=Severity.NOTE).severity is Severity.NOTE
    with pytest.raises(ValueError, match=r"GCS102 leaf-rebound is at most .*'warning'.*'error'"):
        finding(catalogue.LEAF_REBOUND, severity=Severity.ERROR)


def test_severities_are_ordered_from_note_to_error():
    assert sorted(Severity) == [Severity.NOTE, Severity.WARNING, Severity.ERROR]
    assert max(Severity) is Severity.ERROR
    assert Severity.NOTE <= Severity.NOTE >= Severity.NOTE


def test_a_report_is_ok_unless_it_holds_an_error():
    warning = finding(severity=Severity.WARNING)
    assert Report("t").ok
    assert Report("t", (warning,)).ok
    assert not Report("t", (warning, finding())).ok


def test_at_least_counts_the_severity_itself_and_what_is_worse():
    note, warning, error = (finding(severity=severity) for severity in sorted(Severity))
    report = Report("t", (note, warning, error))
    assert report.at_least(Severity.WARNING) == (warning, error)
    assert [report.count(severity) for severity in Severity] == [1, 1, 1]


def test_raise_for_findings_carries_the_report_and_its_text():
    report = Report("gradcheck-suite audit", (finding(),))
    with pytest.raises(FindingsError, match="GCS301") as caught:
        report.raise_for_findings()
    assert caught.value.report is report
    assert isinstance(caught.value, AssertionError)


def test_a_findings_error_begins_with_its_most_severe_finding_on_one_line():
    mild = finding(catalogue.LEAF_REBOUND)
    several = Report("t", (mild, Finding.of(catalogue.WRONG_GRADIENT, "a\nb", detector="verify")))
    assert str(FindingsError(several)).split("\n\n", 1) == [
        "1 error, 1 warning, first GCS601 wrong-gradient: a b",
        str(several),
    ]
    alone = FindingsError(Report("t", (mild,)))
    assert str(alone).startswith("1 warning: GCS102 leaf-rebound: a message\n\n")
    assert str(pickle.loads(pickle.dumps(alone))) == str(alone)


def test_raise_for_findings_respects_the_threshold():
    report = Report("t", (finding(severity=Severity.WARNING),))
    report.raise_for_findings()
    with pytest.raises(FindingsError):
        report.raise_for_findings(fail_on=Severity.WARNING)


def test_findings_and_reports_survive_pickling():
    report = Report("t", (finding(evidence={"count": 3}),), summary={"files": 1})
    assert pickle.loads(pickle.dumps(report)) == report


def test_merging_tells_a_mistake_once_and_says_who_else_saw_it():
    proved = Report("audit", (finding(detector="audit", path=str(Path.cwd() / "train.py")),))
    read = Report("lint", (finding(detector="lint"),))
    merged = merge_reports("demo", [proved, read])
    (only,) = merged.findings
    assert only.detector == "audit"
    assert only.evidence["also_found_by"] == ("lint",)


def test_merging_keeps_what_one_detector_says_twice_of_a_line():
    twice = Report("lint", (finding(), finding()))
    assert len(merge_reports("demo", [twice]).findings) == 2


def test_merging_keeps_other_codes_lines_files_and_placeless_findings():
    placeless = Finding.of(catalogue.WRONG_GRADIENT, "m", detector="verify")
    findings = (
        finding(),
        finding(line=4),
        finding(path="other.py"),
        finding(catalogue.GRAPH_KEPT),
        placeless,
        placeless,
    )
    merged = merge_reports("demo", [Report("a", findings[:4]), Report("b", findings[4:])])
    assert len(merged.findings) == 5 + 1


def test_merging_keeps_verdicts_summaries_and_what_was_not_covered():
    merged = merge_reports(
        "demo",
        [
            Report("a", summary={"steps": 3}, not_covered=("workers",)),
            Report("b", summary={"files": 1}, not_covered=("buffers",)),
        ],
    )
    assert merged.summary == {"steps": 3, "files": 1}
    assert merged.not_covered == ("workers", "buffers")


def test_the_surer_finding_about_one_mistake_is_kept():
    seen = {"also_found_by": ("lint",)}
    likely = finding(severity=Severity.WARNING, detector="audit", evidence=seen)
    certain = finding(severity=Severity.ERROR, detector="verify")
    (only,) = merge_reports("t", [Report("a", (likely,)), Report("b", (certain,))]).findings
    assert only.severity is Severity.ERROR
    assert only.detector == "verify"
    assert set(only.evidence["also_found_by"]) == {"audit", "lint"}


def test_two_detectors_that_name_the_same_parameters_tell_one_mistake():
    named = finding(detector="audit", line=4, evidence={"parameters": ("b", "a")})
    same = finding(detector="graph", line=8, evidence={"parameters": ["a", "b"]})
    other = finding(detector="graph", line=9, evidence={"parameters": ["a"]})
    merged = merge_reports("t", [Report("a", (named,)), Report("b", (same, other))])
    assert [one.location.line for one in merged.findings] == [4, 9]


@pytest.mark.parametrize(
    ("doubts", "severity"),
    [
        ((), Severity.ERROR),
        (["its module rests"], Severity.WARNING),
        (["its module rests", "once only"], Severity.NOTE),
        (["its module rests", "once only", "under vmap"], Severity.NOTE),
    ],
)
def test_each_doubt_lowers_the_severity_and_is_told(doubts, severity):
    found = Finding.of(
        catalogue.MISSING_ZERO_GRAD, "m", detector="audit", doubts=doubts, evidence={"step": 2}
    )
    assert found.severity is severity
    assert found.evidence.get("lowered", ()) == tuple(doubts)
    assert found.evidence["step"] == 2
    text = " ".join(str(Report(tool="t", findings=(found,))).split())
    assert (f"lowered: {'; '.join(doubts)}" in text) == bool(doubts)
