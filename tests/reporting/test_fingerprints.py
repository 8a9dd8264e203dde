"""Fingerprints in JSON, and reports without what an earlier one had."""

from __future__ import annotations

import pytest

from gradcheck_suite.errors import UsageError
from gradcheck_suite.findings import Location, Report
from gradcheck_suite.reporting import json as json_report
from gradcheck_suite.reporting.fingerprints import fingerprints, without_known


def of(report):
    return [finding["fingerprint"] for finding in json_report.to_document(report)["findings"]]


@pytest.mark.parametrize("kind", ["audit", "verify", "lint", "graph"])
def test_findings_in_json_have_those_of_sarif(reports_of_each_kind, kind):
    report = reports_of_each_kind[kind]
    assert of(report) == fingerprints(report)
    assert all(len(each) == 32 for each in of(report))


def test_a_finding_without_a_place_is_known_by_its_words_and_not_by_its_numbers(make_finding):
    def one(message):
        return of(Report("t", (make_finding(location=None, message=message),)))

    first = one("`fc1.weight` differs by 1.25e-3, -4 times the bound 3,000")
    assert one("`fc1.weight` differs by 7, 12.5 times  the bound 0.1") == first
    assert one("`fc2.weight` differs by 1.25e-3, -4 times the bound 3,000") != first


def test_a_finding_without_a_place_does_not_move_with_others(make_finding):
    findings = [make_finding(location=None, message=f"`{name}` is wrong") for name in "ab"]
    assert of(Report("t", (findings[1],))) == of(Report("t", tuple(findings)))[1:]


@pytest.fixture
def earlier(tmp_path, train_file, make_finding):
    train_file.write_text("step()\nother()\nstep()\n")
    findings = [make_finding(location=Location("train.py", line)) for line in (1, 2)]
    path = tmp_path / "old.json"
    path.write_text(json_report.render(Report("t", tuple(findings))))
    return path


def test_only_what_is_new_is_left(earlier, train_file, make_finding):
    train_file.write_text("# moved\n\nother()\nstep()\nnew()\nstep()\n")
    lines = (3, 4, 5, 6)
    findings = tuple(make_finding(location=Location("train.py", line)) for line in lines)
    report = without_known(Report("t", findings, summary={"steps": 2}), earlier)
    assert [finding.location.line for finding in report.findings] == [5, 6]
    assert report.summary == {"steps": 2, "known": 2}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "cannot read the report"),
        ("{", "is no report of gradcheck-suite in JSON with fingerprints (JSONDecodeError"),
        ("[]", "is no report of gradcheck-suite in JSON with fingerprints (TypeError"),
        ('{"findings": [{"code": "GCS301"}]}', "(KeyError: 'fingerprint'); write one with"),
    ],
)
def test_what_is_no_report_is_a_usage_error(tmp_path, text, reason):
    path = tmp_path / "old.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UsageError) as raised:
        without_known(Report("t"), path)
    assert reason in str(raised.value)
