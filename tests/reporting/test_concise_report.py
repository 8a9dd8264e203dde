from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradcheck_suite.findings import Location, Report, Verdict
from gradcheck_suite.reporting import concise
from gradcheck_suite.reporting.summary import conclusion
from gradcheck_suite.severity import Severity

MESSAGE = "The gradient of fc.weight was used by step() and then added to."
LOOKED_AT = "(12 steps watched; 1 thing not covered)"


def test_one_line_for_each_finding_and_the_verdict_last(reports_of_each_kind):
    assert concise.render(reports_of_each_kind["audit"]).splitlines() == [
        "train.py:9:9: GCS301 [error] " + MESSAGE,
        "train.py:11: GCS201 [error] `total` holds the graph of every step.",
        "GCS203 [warning] " + MESSAGE,
        "gradcheck-suite audit: 2 errors, 1 warning in train.py " + LOOKED_AT,
    ]


@given(data=st.data())
@settings(max_examples=60, deadline=None)
@pytest.mark.slow
def test_any_report_has_one_line_more_than_findings(any_report, unshown, data):
    report = data.draw(any_report)
    text = concise.render(report)
    assert not unshown(text)
    assert len(text.splitlines()) == len(report.findings) + 1


def test_a_message_of_several_lines_becomes_one(make_finding):
    report = Report("t", (make_finding(message="first,\n    second"),))
    assert "first, second" in concise.render(report).splitlines()[0]


def report(*, findings=(), verdicts=(), summary=None, not_covered=()):
    return Report("gradcheck-suite verify", findings, verdicts, summary or {}, not_covered)


def verdicts(**counts):
    return tuple(
        Verdict("out", f"x{number}", status.replace("_", " "))
        for status, count in counts.items()
        for number in range(count)
    )


@pytest.mark.parametrize(
    ("given_report", "sentence"),
    [
        (report(), "nothing found"),
        (report(summary={"steps": 1}), "nothing found (1 step watched)"),
        (
            report(summary={"steps": 3000, "steps_passed_over": 1900}),
            "nothing found (1,100 of 3,000 steps watched)",
        ),
        (report(summary={"files": 1200}), "nothing found (1,200 files checked)"),
        (report(summary={"steps": True}), "nothing found"),
        (report(verdicts=verdicts(**{"pass": 2})), "nothing found (gradients: 2 pass)"),
        (
            report(verdicts=verdicts(**{"pass": 2, "not_covered": 1, "inconclusive": 1})),
            "nothing found (gradients: 2 pass, 1 inconclusive, 1 not covered)",
        ),
        (report(verdicts=verdicts(fail=2)), "2 gradients failed (gradients: 2 fail)"),
        (report(not_covered=("a", "b")), "nothing found (2 things not covered)"),
    ],
)
def test_the_conclusion_says_how_much_was_looked_at(given_report, sentence):
    assert conclusion(given_report) == f"gradcheck-suite verify: {sentence}"


def test_the_conclusion_counts_by_severity_and_names_the_file(make_finding):
    counts = {Severity.ERROR: 1, Severity.WARNING: 2, Severity.NOTE: 3}
    findings = tuple(
        make_finding(severity=severity) for severity, n in counts.items() for _ in range(n)
    )
    assert conclusion(report(findings=findings)).endswith(
        ": 1 error, 2 warnings, 3 notes in train.py"
    )
    elsewhere = make_finding(location=Location("model.py", 1))
    assert conclusion(report(findings=(*findings, elsewhere))).endswith(" in 2 files")
    nowhere = make_finding(location=None)
    assert conclusion(report(findings=(nowhere,))).endswith(": 1 error")
