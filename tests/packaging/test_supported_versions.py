"""The table of supported versions against the metadata, the CI workflow and ``make compat``."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import asdict
from importlib import import_module
from pathlib import Path

import yaml

from benchmarks import compat
from benchmarks.bank_findings import differences
from gradcheck_suite._torch_floor import OLDEST

ROOT = Path(__file__).parents[2]
toml = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
PROJECT = toml.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
ROWS = dict(
    re.findall(
        r"^\| ([^|]+) \| ([^|]+) \|",
        (ROOT / "docs" / "versioning.md").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
)


def minor(version):
    return ".".join(version.split(".")[:2])


def test_pythons_are_those_of_the_metadata_and_ci_runs_each():
    told = ROWS["Python, linter and reports"].split(", ")
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    assert told == named
    assert PROJECT["requires-python"] == f">={told[0]}"
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"]
    matrix = jobs["lint-on-every-python"]["strategy"]["matrix"]["python-version"]
    (whole,) = (
        step["with"]["python-version"]
        for step in jobs["everything"]["steps"]
        if "python-version" in step.get("with", {})
    )
    assert sorted([*matrix, whole]) == sorted(told)


def test_torches_are_those_that_make_compat_tries_and_ci_runs_the_ends():
    oldest, newest = re.match(r"([\d.]+) to ([\d.]+),", ROWS["torch"]).groups()
    assert oldest == minor(compat.OLDEST) == ".".join(map(str, OLDEST))
    assert newest == minor(compat.NEWEST)
    assert f"torch>={oldest}" in PROJECT["optional-dependencies"]["torch"]
    minors = [int(minor(version).split(".")[1]) for version in compat.VERSIONS]
    assert minors == list(range(minors[0], minors[-1] + 1))
    assert "compat-quick" in (ROOT / ".ci" / "run").read_text()


def test_pytest_is_that_of_the_extra():
    (least,) = re.findall(r"pytest>=([\d.]+)", PROJECT["optional-dependencies"]["pytest"][0])
    assert ROWS["pytest"] == f"{least} and later"


def test_what_had_failed_runs_again_and_the_rest_stays(monkeypatch, tmp_path):
    kept = tmp_path / "compat.json"
    failed = {
        "tests/plugin/test_whole_suite/TestExamples.py::test_a[1]": "was wrong",
        "tests/packaging/test_supported_versions.py::test_b": "was wrong",
        "tests/packaging/test_supported_versions.py::test_c": "was wrong",
    }
    before = compat.Outcome("2.6.0", compat._version_of(sys.executable), passed=7, failed=failed)
    kept.write_text(json.dumps({before.key: asdict(before)}), encoding="utf-8")
    asked = []

    def run(_own, report, *, paths, slow):
        asked.extend(paths)
        report.write_text(
            '<testsuite><testcase classname="tests.plugin.test_whole_suite.TestExamples" '
            'name="test_a[1]"/><testcase classname="tests.packaging.test_supported_versions" '
            'name="test_b"><skipped message="not here"/></testcase><testcase '
            'classname="tests.packaging.test_supported_versions" name="test_c">'
            '<failure message="is wrong"/></testcase></testsuite>',
            encoding="utf-8",
        )

    monkeypatch.setattr(compat, "_KEPT", kept)
    monkeypatch.setattr(compat, "_environment", lambda *_: sys.executable)
    monkeypatch.setattr(compat, "_run_tests", run)
    again = compat.try_failed_again("2.6.0", sys.executable)
    assert asked == [
        "tests/packaging/test_supported_versions.py",
        "tests/plugin/test_whole_suite.py",
    ]
    assert again.passed == 8
    assert list(again.failed.values()) == ["is wrong"]
    assert list(again.skipped.values()) == ["not here"]


def test_what_could_not_be_run_differs():
    before = {"loops": {"wrong one": ["GCS301 error a.py:3 words"], "correct one": []}}
    (gone, dead) = differences(before, {"loops": {}})
    assert {gone.subject, dead.subject} == {"wrong one", "correct one"}
    assert not gone.is_in_words
    assert differences(before, {**before, "leaks": {"wrong two": []}}) == []
    reworded = {"loops": {"wrong one": ["GCS301 error a.py:3 other"], "correct one": []}}
    assert [each.is_in_words for each in differences(before, reworded)] == [True]


def test_the_page_tells_whom_a_version_accuses():
    found = {"loops": {"correct one": ["GCS301 error a.py:3 words", "GCS401 note a.py:4 more"]}}
    accused = compat._accused(found)
    assert accused == ["loops, correct one: GCS301 error a.py:3 words"]
    row = asdict(compat.Outcome("2.6.0", "3.11.7", subjects=1, accused=accused, commit="abc1234"))
    page = compat.page({"2.6.0 on Python 3.11.7": row})
    assert "| 2.6.0 | 3.11.7 | left out | 0 | 0 | 0 | 1 | 1 | 0 | 0 | abc1234 |" in page
    assert "correct, and accused: loops, correct one: GCS301 error a.py:3 words" in page
