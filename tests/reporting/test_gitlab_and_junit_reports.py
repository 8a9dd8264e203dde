from __future__ import annotations

import json
import re
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradcheck_suite.findings import Location, Related, Report, Verdict
from gradcheck_suite.reporting import gitlab, junit
from gradcheck_suite.severity import Severity

HOSTILE = 'a"]]>&<b>\x00\x1b[31m\u202e\ufffe\ud800\n</failure><testcase name="smuggled"/>,::error::'


def issues_of(report):
    return json.loads(gitlab.render(report))


def suite_of(report):
    (suite,) = ElementTree.fromstring(junit.render(report))
    return suite


def hostile_report(make_finding):
    finding = make_finding(
        message=HOSTILE,
        hint=HOSTILE,
        rule=HOSTILE,
        location=Location(HOSTILE, 1),
        related=(Related(Location(HOSTILE, 1), HOSTILE),),
    )
    verdict = Verdict(HOSTILE, HOSTILE, "fail", HOSTILE)
    return Report(HOSTILE, (finding,), verdicts=(verdict,), not_covered=(HOSTILE,))


def test_an_issue_has_what_gitlab_wants(reports_of_each_kind):
    first, *others = issues_of(reports_of_each_kind["audit"])
    assert re.fullmatch("[0-9a-f]{32}", first.pop("fingerprint"))
    assert first == {
        "description": "GCS301 The gradient of fc.weight was used by step() and then added to. "
        "(help: call `optimizer.zero_grad()` before `loss.backward()`)",
        "check_name": "missing-zero-grad",
        "severity": "critical",
        "location": {"path": "train.py", "lines": {"begin": 9}},
    }
    assert others[-1]["check_name"] == "not-covered"
    assert others[-2]["location"] == {"path": ".", "lines": {"begin": 1}}


def test_severities_of_gitlab(make_finding):
    report = Report("t", tuple(make_finding(severity=severity) for severity in Severity))
    assert [issue["severity"] for issue in issues_of(report)] == ["critical", "major", "info"]


def test_fingerprints_of_gitlab_differ(make_finding):
    report = Report("t", (make_finding(), make_finding()), not_covered=("a", "a"))
    assert len({issue["fingerprint"] for issue in issues_of(report)}) == 4


def test_a_failed_test_tells_the_finding(reports_of_each_kind):
    suite = suite_of(reports_of_each_kind["audit"])
    case = suite[0]
    assert case.attrib == {
        "classname": "train.py",
        "name": "GCS301 missing-zero-grad train.py:9:9",
        "line": "9",
    }
    (failure,) = case
    assert failure.attrib["type"] == "error"
    assert failure.text.splitlines() == [
        "The gradient of fc.weight was used by step() and then added to.",
        "used here: train.py:10:9",
        "help: call `optimizer.zero_grad()` before `loss.backward()`",
        "at train.py:9:9",
    ]
    assert suite[-1].attrib["classname"] == "not covered"


def test_counts_are_those_of_the_cases(make_finding):
    findings = tuple(make_finding(severity=severity) for severity in Severity)
    verdicts = [Verdict("y", "x", status) for status in ("pass", "fail", "inconclusive")]
    suite = suite_of(Report("t", findings, verdicts=tuple(verdicts), not_covered=("more",)))
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("7", "3", "3")
    assert len(suite) == 7
    assert len(suite.findall("*/failure")) == 3
    assert len(suite.findall("*/skipped")) == 3


def test_nothing_found_is_one_test_that_passed():
    (case,) = suite_of(Report("gradcheck-lint"))
    assert (case.get("classname"), case.get("name")) == ("gradcheck-lint", "nothing found")
    assert len(case) == 0


def test_hostile_text_stays_text(make_finding):
    report = hostile_report(make_finding)
    suite = suite_of(report)
    assert [child.tag for child in suite] == ["testcase"] * 3
    assert junit.render(report).isascii()
    assert len(issues_of(report)) == 2
    assert gitlab.render(report).isascii()


@pytest.mark.parametrize("renderer", [gitlab, junit])
@given(data=st.data())
@settings(max_examples=60, deadline=None)
@pytest.mark.slow
def test_any_report_is_well_formed(any_report, unshown, renderer, data):
    report = data.draw(any_report)
    text = renderer.render(report)
    assert not unshown(text.replace("\n", ""))
    if renderer is junit:
        cases = len(report.findings) + len(report.verdicts) + len(report.not_covered)
        assert len(suite_of(report)) == max(cases, 1)
    else:
        assert len(issues_of(report)) == len(report.findings) + len(report.not_covered)
