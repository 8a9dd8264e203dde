from __future__ import annotations

import json
import re
from importlib.resources import files
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradcheck_suite import __version__
from gradcheck_suite.findings import Location, Report
from gradcheck_suite.reporting import json as json_report
from gradcheck_suite.reporting.fingerprints import fingerprints


@pytest.fixture(scope="session")
def validator():
    schema = json.loads(
        files("gradcheck_suite.reporting")
        .joinpath("schemas", "report-1.schema.json")
        .read_text(encoding="utf-8")
    )
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def test_the_documented_example_fits_the_schema(validator):
    page = Path(__file__).parents[2] / "docs" / "report-format.md"
    (example,) = re.findall(r"```json\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    validator.validate(json.loads(example))


def document_of(report):
    return json.loads(json_report.render(report))


@pytest.mark.parametrize("kind", ["audit", "verify", "lint", "graph"])
def test_each_kind_of_report_fits_the_schema(reports_of_each_kind, validator, kind):
    validator.validate(document_of(reports_of_each_kind[kind]))


@given(data=st.data())
@settings(max_examples=60, deadline=None)
@pytest.mark.slow
def test_any_report_fits_the_schema_in_printable_ascii(any_report, validator, data):
    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    text = json_report.render(data.draw(any_report))
    assert text.endswith("}\n")
    assert all(character == "\n" or " " <= character <= "~" for character in text)
    document = json.loads(text, parse_constant=refuse)
    json.dumps(document, ensure_ascii=False).encode("utf-8")
    validator.validate(document)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda report: report.update(colour="red"),
        lambda report: report.pop("verdicts"),
        lambda report: report.update(schema=2),
        lambda report: report["findings"][0].update(step=3),
        lambda report: report["findings"][0].pop("hint"),
        lambda report: report["findings"][0].update(severity="fatal"),
        lambda report: report["findings"][0].update(line=None),
        lambda report: report["findings"][0].update(path=None),
        lambda report: report["findings"][0]["related"][0].update(line=0),
        lambda report: report["summary"].pop("errors"),
    ],
)
def test_the_schema_refuses_what_is_wrong(reports_of_each_kind, validator, spoil):
    document = document_of(reports_of_each_kind["audit"])
    spoil(document)
    assert not validator.is_valid(document)


def test_the_names_and_their_order(reports_of_each_kind):
    document = document_of(reports_of_each_kind["audit"])
    assert list(document) == [
        "schema",
        "tool",
        "version",
        "findings",
        "verdicts",
        "not_covered",
        "summary",
    ]
    assert document["schema"] == 1
    assert document["tool"] == "gradcheck-suite audit"
    assert document["version"] == __version__
    assert document["findings"][0] == {
        "code": "GCS301",
        "rule": "missing-zero-grad",
        "severity": "error",
        "message": "The gradient of fc.weight was used by step() and then added to.",
        "path": "train.py",
        "cell": None,
        "line": 9,
        "column": 9,
        "end_line": 9,
        "end_column": 24,
        "function": "train_epoch",
        "related": [{"path": "train.py", "cell": None, "line": 10, "message": "used here"}],
        "hint": "call `optimizer.zero_grad()` before `loss.backward()`",
        "evidence": {"also_found_by": ["lint"], "count": 1200},
        "detector": "audit",
        "fixable": False,
        "fingerprint": fingerprints(reports_of_each_kind["audit"])[0],
    }
    assert document["summary"] == {
        "errors": 2,
        "warnings": 1,
        "notes": 0,
        "peak_bytes": 3 * 1024**2,
        "seed": 1234567,
        "steps": 12,
    }


def test_verdicts_and_numbers_that_json_lacks(reports_of_each_kind):
    document = document_of(reports_of_each_kind["verify"])
    assert document["findings"][0]["evidence"] == {
        "analytic": "NaN",
        "index": [3, 1],
        "numeric": "-Infinity",
    }
    assert document["verdicts"][2] == {
        "output": "out",
        "input": "x",
        "status": "inconclusive",
        "reason": "a kink of relu within reach of the probe",
        "evidence": {},
    }


def test_the_same_report_is_the_same_text_however_its_evidence_is_ordered(make_finding):
    one, other = {"step": 1, "bytes": 2}, {"bytes": 2, "step": 1}
    texts = [json_report.render(Report("t", (make_finding(evidence=e),))) for e in (one, other)]
    assert texts[0] == texts[1]


def test_a_tool_cannot_miscount_its_findings(make_finding):
    report = Report("t", (make_finding(),), summary={"errors": 0})
    assert document_of(report)["summary"]["errors"] == 1


def test_paths_below_the_working_directory_are_relative(make_finding, train_file):
    finding = make_finding(location=Location(str(train_file), 9))
    assert document_of(Report("t", (finding,)))["findings"][0]["path"] == "train.py"


def test_a_value_that_is_no_json_becomes_its_text(make_finding):
    finding = make_finding(evidence={"index": {3: range(2)}})
    evidence = document_of(Report("t", (finding,)))["findings"][0]["evidence"]
    assert evidence == {"index": {"3": "range(0, 2)"}}
