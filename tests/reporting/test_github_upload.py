"""SARIF against what GitHub's code scanning asks of an upload.

The rules and limits are those of "SARIF support for code scanning" in GitHub's documentation
(docs.github.com/en/code-security/code-scanning/integrating-with-code-scanning), as of 2026.
"""

from __future__ import annotations

import gzip
import json
from urllib.parse import urlsplit

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradcheck_suite import catalogue
from gradcheck_suite.findings import Finding, Location, Report
from gradcheck_suite.reporting import sarif
from gradcheck_suite.severity import Severity

MOST_RUNS = 20
MOST_RESULTS = MOST_RULES = 25_000
MOST_LOCATIONS = 1_000
MOST_TAGS = 20
MOST_BYTES = 10 * 1024 * 1024
LONGEST_NAME = 255
LONGEST_DESCRIPTION = 1024


def complaints(document):
    """Yield every rule that an upload of the document would break."""
    if document.get("version") != "2.1.0":
        yield "version is not 2.1.0"
    if "sarif-schema-2.1.0.json" not in document.get("$schema", ""):
        yield "$schema is not that of 2.1.0"
    if len(gzip.compress(json.dumps(document).encode())) > MOST_BYTES:
        yield "more than 10 MB"
    if not 1 <= len(document["runs"]) <= MOST_RUNS:
        yield "number of runs"
    for run in document["runs"]:
        yield from of_run(run)


def of_run(run):
    driver = run["tool"]["driver"]
    if not driver.get("name"):
        yield "no name of the tool"
    if len(driver["rules"]) > MOST_RULES or len(run["results"]) > MOST_RESULTS:
        yield "too many rules or results"
    for rule in driver["rules"]:
        yield from of_rule(rule)
    for result in run["results"]:
        yield from of_result(result, driver["rules"])


def of_rule(rule):
    if len(rule.get("name", "")) > LONGEST_NAME:
        yield "long name of a rule"
    if not rule.get("id") or not rule["help"].get("text"):
        yield "no id or no help"
    for key in ("shortDescription", "fullDescription"):
        if not 1 <= len(rule[key]["text"]) <= LONGEST_DESCRIPTION:
            yield f"length of {key}"
    if rule["defaultConfiguration"]["level"] not in {"note", "warning", "error"}:
        yield "level of a rule"
    if rule["properties"]["problem.severity"] not in {"error", "warning", "recommendation"}:
        yield "problem.severity"
    if len(rule["properties"]["tags"]) > MOST_TAGS:
        yield "too many tags"


def of_result(result, rules):
    if rules[result["ruleIndex"]]["id"] != result["ruleId"]:
        yield "ruleIndex is of another rule"
    if not result["message"].get("text"):
        yield "no message"
    fingerprints = result.get("partialFingerprints", {})
    if not fingerprints or not all(isinstance(one, str) and one for one in fingerprints.values()):
        yield "no fingerprint"
    if not result["locations"]:
        yield "expected at least one location"
    if len(result["locations"]) + len(result.get("relatedLocations", ())) > MOST_LOCATIONS:
        yield "too many locations"
    for location in (*result["locations"], *result.get("relatedLocations", ())):
        yield from of_location(location["physicalLocation"])


def of_location(place):
    uri = urlsplit(place["artifactLocation"]["uri"])
    if uri.scheme not in {"", "file"}:
        yield f"scheme {uri.scheme}"
    if not uri.scheme and uri.path.startswith("/"):
        yield "an absolute path without a scheme"
    region = place.get("region")
    if region is None or region["startLine"] < 1:
        yield "no first line"
        return
    end = region.get("endLine", region["startLine"])
    if end < region["startLine"]:
        yield "the end comes before the beginning"


def of(report):
    return list(complaints(json.loads(sarif.render(report))))


@pytest.mark.parametrize("kind", ["audit", "verify", "lint", "graph", "empty"])
def test_each_kind_of_report_may_be_uploaded(reports_of_each_kind, kind):
    assert of(reports_of_each_kind.get(kind, Report("gradcheck-lint"))) == []


def test_each_entry_of_the_catalogue_is_a_rule_that_may_be_uploaded():
    findings = tuple(
        Finding.of(entry, "a message", detector="lint", location=Location("a.py", 1))
        for entry in catalogue.ENTRIES
    )
    assert of(Report("gradcheck-lint", findings)) == []


@pytest.mark.slow
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_any_report_with_words_in_it_may_be_uploaded(any_report, data):
    report = data.draw(any_report)
    told = set(of(report))
    # What has no words says nothing by any rule; of the tool and the catalogue all have.
    assert told <= {"no name of the tool", "no id or no help", "no message", *LENGTHS}


LENGTHS = {"length of shortDescription", "length of fullDescription", "long name of a rule"}


def test_what_has_no_place_is_put_at_the_working_directory(make_finding):
    (result,) = json.loads(sarif.render(Report("t", (make_finding(location=None),))))["runs"][0][
        "results"
    ]
    (location,) = result["locations"]
    assert location["physicalLocation"] == {
        "artifactLocation": {"uri": ".", "uriBaseId": "%SRCROOT%"},
        "region": {"startLine": 1},
    }


def test_of_more_results_than_a_run_may_have_the_mildest_are_left_out(make_finding, monkeypatch):
    monkeypatch.setattr(sarif, "_MOST_RESULTS", 3)
    severities = [Severity.NOTE, Severity.ERROR, Severity.WARNING, Severity.NOTE, Severity.ERROR]
    report = Report("t", tuple(make_finding(severity=severity) for severity in severities))
    (run,) = json.loads(sarif.render(report))["runs"]
    assert [result["level"] for result in run["results"]] == ["error", "error", "warning"]
    (note,) = run["invocations"][0]["toolExecutionNotifications"]
    assert note["message"]["text"].startswith("2 of 5 findings are left out, the mildest")


def spoil_locations(document):
    document["runs"][0]["results"][0]["locations"] = []


def spoil_fingerprints(document):
    del document["runs"][0]["results"][0]["partialFingerprints"]


def spoil_lines(document):
    place = document["runs"][0]["results"][0]["locations"][0]["physicalLocation"]
    place["region"]["startLine"] = 0


def spoil_paths(document):
    place = document["runs"][0]["results"][0]["locations"][0]["physicalLocation"]
    place["artifactLocation"]["uri"] = "/home/me/train.py"


def spoil_size(document):
    document["runs"][0]["results"] *= 25_001


def spoil_descriptions(document):
    document["runs"][0]["tool"]["driver"]["rules"][0]["fullDescription"]["text"] = "x" * 1025


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (spoil_locations, "expected at least one location"),
        (spoil_fingerprints, "no fingerprint"),
        (spoil_lines, "no first line"),
        (spoil_paths, "an absolute path without a scheme"),
        (spoil_size, "too many rules or results"),
        (spoil_descriptions, "length of fullDescription"),
    ],
)
def test_the_check_can_fail(spoil, complaint, reports_of_each_kind):
    document = json.loads(sarif.render(reports_of_each_kind["audit"]))
    assert list(complaints(document)) == []
    spoil(document)
    assert complaint in set(complaints(document))
