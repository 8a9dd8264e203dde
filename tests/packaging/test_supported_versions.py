"""The table of supported versions against the metadata, the CI workflow and ``make compat``."""

from __future__ import annotations

import re
import sys
from importlib import import_module
from pathlib import Path

import yaml

from benchmarks import compat
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
