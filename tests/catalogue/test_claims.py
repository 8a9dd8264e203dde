"""Whether every entry is found, and fixed, in the ways that it claims, in its own sources."""

from __future__ import annotations

import ast
import importlib.util
import json
import shutil
import subprocess
import sys
import warnings
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

import gradcheck_suite
from gradcheck_lint.rules import RULES
from gradcheck_suite import catalogue
from tests.catalogue.programs import PROGRAMS
from tests.lint.fixtures_of_rules import fixtures_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

    from gradcheck_suite.catalogue import Entry
    from gradcheck_suite.findings import Finding

SOURCES = ("example", "instead")
AT_RUN_TIME = ("auditing", "verification", "graph", "accumulation")

each_entry = pytest.mark.parametrize("entry", catalogue.ENTRIES, ids=lambda entry: entry.code)


def _lint(folder: Path, *options: str) -> list[dict[str, Any]]:
    report = ("--isolated", "--no-cache", "--output-format", "json")
    done = subprocess.run(
        [sys.executable, "-m", "gradcheck_lint", ".", *report, *options],
        cwd=folder,
        capture_output=True,
        encoding="utf-8",
        check=False,
        timeout=600,  # only ends a hang
    )
    assert done.returncode in (0, 1), done.stderr
    findings: list[dict[str, Any]] = json.loads(done.stdout)["findings"]
    return findings


def _codes_in(findings: list[dict[str, Any]], path: str) -> list[str]:
    return [finding["code"] for finding in findings if Path(finding["path"]) == Path(path)]


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with every source of the catalogue in a file of its own."""
    folder = tmp_path_factory.mktemp("catalogue")
    for entry in catalogue.ENTRIES:
        for which in SOURCES:
            path = folder / f"{entry.code}_{which}.py"
            path.write_text(getattr(entry, which), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def linted(sources: Path) -> list[dict[str, Any]]:
    return _lint(sources)


@pytest.fixture(scope="module")
def left(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What is found in the examples after every fix."""
    folder = tmp_path_factory.mktemp("fixed")
    for path in sources.glob("*_example.py"):
        shutil.copy(path, folder)
    return _lint(folder, "--fix", "--unsafe-fixes")


@pytest.fixture
def warn_always() -> Iterator[None]:
    """Let torch repeat the warnings that it gives once per process, whatever ran before."""
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    yield
    torch.set_warn_always(before)


@contextmanager
def _imported(folder: Path, entry: Entry, which: str) -> Iterator[ModuleType]:
    path = folder / f"{entry.code}_{which}.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # As after an import: who keeps a tensor is told by the names of modules.
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
        yield module
    finally:
        del sys.modules[path.stem]


def _marked(entry: Entry) -> set[int]:
    lines = enumerate(entry.example.splitlines(), start=1)
    return {number for number, line in lines if line.endswith(f"  # {entry.code}")}


@each_entry
def test_the_linter_reports_the_marked_lines_of_the_example(entry, linted):
    path = f"{entry.code}_example.py"
    found = {
        finding["line"]
        for finding in linted
        if finding["path"] == path and finding["code"] == entry.code
    }
    assert found == _marked(entry)
    assert bool(found) is entry.in_source


@each_entry
def test_the_linter_is_silent_about_the_correction(entry, linted):
    assert _codes_in(linted, f"{entry.code}_instead.py") == []


@each_entry
def test_what_can_be_fixed_by_machine_is_fixed_in_the_example(entry, linted, left):
    path = f"{entry.code}_example.py"
    before, after = (_codes_in(findings, path).count(entry.code) for findings in (linted, left))
    assert (before > 0 and after == 0) is entry.fixable
    assert after in (0, before)


def test_the_rules_of_the_linter_and_their_fixes_are_claimed():
    assert {rule.code for rule in RULES} == {
        entry.code for entry in catalogue.ENTRIES if entry.in_source
    }
    assert {
        rule.code
        for rule in RULES
        if any(case.fixed not in (None, case.source) for case in fixtures_of(rule.slug).invalid)
    } == {entry.code for entry in catalogue.ENTRIES if entry.fixable}


@pytest.mark.slow
def test_what_detectors_report_is_claimed():
    reported = {
        node.attr
        for room in AT_RUN_TIME
        for path in (Path(gradcheck_suite.__file__).parent / room).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "catalogue"
    }
    entries = {getattr(catalogue, name) for name in reported if name.isupper()}
    entries -= {catalogue.ENTRIES, catalogue.FAMILIES}
    assert {entry.code for entry in entries} == {
        entry.code for entry in catalogue.ENTRIES if entry.at_run_time
    }


def test_every_claim_for_run_time_has_a_program():
    assert set(PROGRAMS) == {entry.code for entry in catalogue.ENTRIES if entry.at_run_time}


@pytest.mark.usefixtures("warn_always")
@pytest.mark.parametrize(
    ("code", "number"),
    [(code, number) for code, programs in PROGRAMS.items() for number in range(len(programs))],
)
@pytest.mark.sampled(every=4)
def test_run_time_finds_the_example_and_nothing_in_the_correction(code, number, sources):
    entry, program = catalogue.find(code), PROGRAMS[code][number]
    found: dict[str, tuple[Finding, ...]] = {}
    for which in SOURCES:
        torch.manual_seed(0)
        with _imported(sources, entry, which) as names, warnings.catch_warnings(record=True):
            warnings.simplefilter("always")
            found[which] = program(names)
    assert code in {finding.code for finding in found["example"]}
    assert found["instead"] == ()
