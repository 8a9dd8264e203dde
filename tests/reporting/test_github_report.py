from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradcheck_suite.findings import Location, Related, Report
from gradcheck_suite.reporting import github
from gradcheck_suite.severity import Severity

COMMAND = re.compile(
    r"::(?P<command>error|warning|notice) (?P<properties>[^\n]*?)::(?P<message>[^\n]*)"
)


def parse(line):
    """Read a workflow command as the runner of GitHub Actions does."""
    match = COMMAND.fullmatch(line)
    assert match, line
    properties = {}
    for pair in match["properties"].split(","):
        key, value = pair.split("=", 1)
        properties[key] = (
            value.replace("%3A", ":").replace("%2C", ",").replace("%0A", "\n").replace("%25", "%")
        )
    return match["command"], properties, match["message"].replace("%0A", "\n").replace("%25", "%")


def lines_of(report):
    return github.render(report).splitlines()


def test_a_finding_marks_its_line(reports_of_each_kind):
    command, properties, message = parse(lines_of(reports_of_each_kind["audit"])[0])
    assert command == "error"
    assert properties == {
        "file": "train.py",
        "line": "9",
        "endLine": "9",
        "col": "9",
        "endColumn": "24",
        "title": "GCS301 missing-zero-grad",
    }
    assert message.splitlines() == [
        "The gradient of fc.weight was used by step() and then added to.",
        "used here: train.py:10:9",
        "help: call `optimizer.zero_grad()` before `loss.backward()`",
    ]


def test_severities_have_the_commands_of_github(make_finding):
    findings = tuple(make_finding(severity=severity) for severity in Severity)
    commands = [parse(line)[0] for line in lines_of(Report("t", findings))]
    assert commands == ["error", "warning", "notice"]


def test_a_finding_without_a_place_and_what_was_not_covered(reports_of_each_kind):
    *_, finding, not_covered = lines_of(reports_of_each_kind["audit"])
    assert parse(finding)[1] == {"title": "GCS203 retain-graph"}
    assert parse(not_covered) == (
        "notice",
        {"title": "not covered"},
        "the fused optimizer: its reads cannot be seen",
    )


def test_nothing_found_is_nothing_written(reports_of_each_kind):
    assert github.render(reports_of_each_kind["graph"]) == ""


def test_a_range_of_several_lines_has_no_columns(make_finding):
    finding = make_finding(location=Location("train.py", 7, 5, 9, 24))
    _, properties, _ = parse(lines_of(Report("t", (finding,)))[0])
    assert properties["line"] == "7"
    assert properties["endLine"] == "9"
    assert not properties.keys() & {"col", "endColumn"}


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n", "\u2028", "\x85"])
def test_no_text_can_smuggle_a_second_command(make_finding, end):
    smuggled = f"harmless{end}::error file=secret.py::smuggled"
    finding = make_finding(
        message=smuggled,
        hint=smuggled,
        rule=smuggled,
        location=Location(smuggled, 1),
        related=(Related(Location(smuggled, 1), smuggled),),
    )
    report = Report("t", (finding,), not_covered=(smuggled,))
    first, second = lines_of(report)
    assert parse(first)[1]["line"] == "1"
    assert parse(second)[1] == {"title": "not covered"}


def test_properties_keep_their_separators(make_finding):
    finding = make_finding(location=Location("a,b: 100%.py", 1))
    _, properties, _ = parse(lines_of(Report("t", (finding,)))[0])
    assert properties["file"] == "a,b: 100%.py"


@given(data=st.data())
@settings(max_examples=60, deadline=None)
@pytest.mark.slow
def test_any_report_is_commands_line_by_line(any_report, unshown, data):
    report = data.draw(any_report)
    text = github.render(report)
    assert not unshown(text)
    lines = text.splitlines()
    assert len(lines) == len(report.findings) + len(report.not_covered)
    for line in lines:
        parse(line)
