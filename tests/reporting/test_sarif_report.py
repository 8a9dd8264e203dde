from __future__ import annotations

import json
from urllib.parse import unquote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradcheck_suite import catalogue
from gradcheck_suite._addresses import page_of
from gradcheck_suite.catalogue import Entry
from gradcheck_suite.findings import Location, Related, Report
from gradcheck_suite.reporting import sarif
from gradcheck_suite.severity import Severity


def run_of(report):
    (run,) = json.loads(sarif.render(report))["runs"]
    return run


def results_of(report):
    return run_of(report)["results"]


@pytest.mark.parametrize("kind", ["audit", "verify", "lint", "graph"])
def test_each_kind_of_report_is_sarif(reports_of_each_kind, assert_is_sarif, kind):
    assert_is_sarif(json.loads(sarif.render(reports_of_each_kind[kind])))


@pytest.mark.slow
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_any_report_is_sarif(any_report, assert_is_sarif, data):
    document = json.loads(sarif.render(data.draw(any_report)))
    assert_is_sarif(document)
    (run,) = document["runs"]
    rules = run["tool"]["driver"]["rules"]
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["level"] in {"error", "warning", "note"}
        for location in result["locations"] + result["relatedLocations"]:
            uri = location["physicalLocation"]["artifactLocation"]["uri"]
            assert uri.isascii()
            assert ".." not in uri.split("/")


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (lambda log: log["runs"][0].pop("tool"), "'tool' is a required property"),
        (lambda log: log["runs"][0].update(colour="red"), "'colour' was unexpected"),
        (lambda log: log["runs"][0]["results"][0].update(level="fatal"), "'fatal' is not one of"),
        (
            lambda log: log["runs"][0]["results"][0].update(ruleIndex="0"),
            "'0' is not of type 'integer'",
        ),
    ],
)
def test_the_check_for_sarif_can_fail(reports_of_each_kind, assert_is_sarif, spoil, complaint):
    document = json.loads(sarif.render(reports_of_each_kind["audit"]))
    spoil(document)
    with pytest.raises(AssertionError, match=complaint):
        assert_is_sarif(document)


def test_a_result_says_what_where_and_how_to_mend_it(reports_of_each_kind):
    result = results_of(reports_of_each_kind["audit"])[0]
    assert result["ruleId"] == "GCS301"
    assert result["level"] == "error"
    assert result["message"]["text"].startswith("The gradient of fc.weight was used by step()")
    assert result["message"]["text"].endswith(
        "help: call `optimizer.zero_grad()` before `loss.backward()`"
    )
    (location,) = result["locations"]
    assert location["physicalLocation"] == {
        "artifactLocation": {"uri": "train.py", "uriBaseId": "%SRCROOT%"},
        "region": {"startLine": 9, "startColumn": 9, "endLine": 9, "endColumn": 24},
    }
    assert location["logicalLocations"][0]["fullyQualifiedName"] == "train_epoch"
    (related,) = result["relatedLocations"]
    assert related["message"]["text"] == "used here"
    assert related["physicalLocation"]["region"]["startLine"] == 10


def test_levels_are_those_of_the_findings(make_finding):
    findings = tuple(make_finding(severity=severity) for severity in Severity)
    assert [result["level"] for result in results_of(Report("t", findings))] == [
        "error",
        "warning",
        "note",
    ]


def test_each_code_is_one_rule(make_finding):
    findings = (make_finding(), make_finding(code="GCS201"), make_finding())
    run = run_of(Report("t", findings))
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert rules == ["GCS201", "GCS301"]
    assert [result["ruleIndex"] for result in run["results"]] == [1, 0, 1]


def test_a_rule_carries_the_texts_of_the_catalogue(make_finding, monkeypatch):
    entry = Entry(
        code="GCS301",
        slug="missing-zero-grad",
        severity=Severity.ERROR,
        in_source=True,
        at_run_time=True,
        title="a consumed gradient is used again",
        what="What it does.",
        why="Why it hurts.",
        example="optimizer.step()",
        instead="optimizer.zero_grad()",
        detection="",
    )
    monkeypatch.setattr(catalogue, "find", {"GCS301": entry}.get)
    (rule,) = run_of(Report("t", (make_finding(),)))["tool"]["driver"]["rules"]
    assert rule["shortDescription"]["text"] == "a consumed gradient is used again"
    assert rule["fullDescription"]["text"] == "What it does."
    assert "```python\noptimizer.zero_grad()\n```" in rule["help"]["markdown"]
    assert rule["helpUri"] == page_of("GCS301")
    assert "Use instead:\noptimizer.zero_grad()" in rule["help"]["text"]


def test_an_unknown_code_is_a_rule_by_its_own_name(make_finding, assert_is_sarif):
    report = Report("t", (make_finding(code="GCS999", rule="not-yet-known"),))
    assert_is_sarif(json.loads(sarif.render(report)))
    (rule,) = run_of(report)["tool"]["driver"]["rules"]
    assert rule["shortDescription"]["text"] == "not-yet-known"


def test_what_was_not_covered_is_a_notification(reports_of_each_kind):
    (invocation,) = run_of(reports_of_each_kind["verify"])["invocations"]
    assert invocation["executionSuccessful"] is True
    texts = [note["message"]["text"] for note in invocation["toolExecutionNotifications"]]
    subject = "The gradient of out with respect to"
    assert texts == [
        f"{subject} x is inconclusive: a kink of relu within reach of the probe",
        f"{subject} table is not covered: int64 has no gradient",
    ]


def artifact_of(path, make_finding):
    (result,) = results_of(Report("t", (make_finding(location=Location(path, 1)),)))
    return result["locations"][0]["physicalLocation"]["artifactLocation"]


def test_paths_are_percent_encoded_and_relative(make_finding, train_file):
    folder = train_file.parent / "my project"
    path = folder / "caf\u00e9 #1: 50%.py"
    artifact = artifact_of(str(path), make_finding)
    assert artifact["uriBaseId"] == "%SRCROOT%"
    assert artifact["uri"].isascii()
    assert unquote(artifact["uri"]) == "my project/caf\u00e9 #1: 50%.py"
    assert not set(artifact["uri"]) & set(" #:")


def test_a_path_elsewhere_is_an_absolute_file_uri(make_finding, train_file):
    other = train_file.parent.parent / "other.py"
    for path in (str(other), "../other.py"):
        artifact = artifact_of(path, make_finding)
        assert artifact == {"uri": other.as_uri()}


def test_a_pseudo_path_has_no_base(make_finding):
    assert artifact_of("<stdin>", make_finding) == {"uri": "%3Cstdin%3E"}


@pytest.mark.parametrize("end_column", [0, 3])
def test_a_range_that_ends_before_it_starts_has_no_end(make_finding, end_column):
    location = Location("train.py", 2, 5, 2, end_column)
    (result,) = results_of(Report("t", (make_finding(location=location),)))
    assert result["locations"][0]["physicalLocation"]["region"] == {
        "startLine": 2,
        "startColumn": 5,
        "endLine": 2,
    }


def test_a_message_cannot_be_taken_for_a_link(make_finding):
    message = "`fs[0](x)` but laterals[0] (made here)"
    (result,) = results_of(Report("t", (make_finding(message=message),)))
    assert result["message"]["text"] == r"`fs\[0\](x)` but laterals[0] (made here)"


def fingerprints(report):
    return [result["partialFingerprints"]["gradcheckSuite/v1"] for result in results_of(report)]


def test_fingerprints_survive_lines_inserted_above(train_file, make_finding):
    before = fingerprints(Report("t", (make_finding(),)))
    text = train_file.read_text(encoding="utf-8")
    train_file.write_text("# a comment\n\n" + text.replace("        loss.b", "\tloss.b"))
    after = fingerprints(Report("t", (make_finding(location=Location("train.py", 11, 2)),)))
    assert after == before


def test_fingerprints_tell_findings_apart(train_file, make_finding):
    train_file.write_text("step()\nstep()\nother()\n")
    places = [Location("train.py", line) for line in (1, 2, 3)]
    findings = [make_finding(location=place) for place in places]
    findings.append(make_finding(code="GCS302", location=places[0]))
    findings.append(make_finding(location=None))
    assert len(set(fingerprints(Report("t", tuple(findings))))) == 5


def test_fingerprints_do_not_depend_on_the_order_of_the_report(train_file, make_finding):
    train_file.write_text("step()\nstep()\n")
    findings = [make_finding(location=Location("train.py", line)) for line in (1, 2)]
    forwards = fingerprints(Report("t", tuple(findings)))
    backwards = fingerprints(Report("t", tuple(reversed(findings))))
    assert forwards == backwards[::-1]


def test_two_equal_related_places_stay_apart(make_finding):
    related = (Related(Location("train.py", 1), "held here"),) * 2
    (result,) = results_of(Report("t", (make_finding(related=related),)))
    first, second = result["relatedLocations"]
    assert first != second
