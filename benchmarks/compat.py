"""Run the tests on every version of torch that is supported, and write docs/compatibility.md.

For each version an environment is made, used and removed, one at a time; that takes some 6 GB of
disk for as long as it lasts. The findings of the tests' banks (``bank_findings``) are compared with
those on the version of development. Results are kept in benchmarks/compat.json: a run of a few
versions replaces theirs, and the page is written anew from all that are there.

    python -m benchmarks.compat                     # all versions; hours on a small machine
    python -m benchmarks.compat 2.6.0 2.15.0        # these
    python -m benchmarks.compat --without-slow 2.8.0
    python -m benchmarks.compat --failed 2.6.0      # again, what had failed there
    python -m benchmarks.compat --overhead 2.15.0   # what the audit costs a step there
    python -m benchmarks.compat --quick 2.6.0       # minutes: no page, exit status 1 on a failure
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.bank_findings import differences

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.bank_findings import Difference, Found

DEVELOPMENT = "2.13.0"
"""The version that constraints.txt pins: what the findings of the others are compared with."""
VERSIONS = (
    *("2.6.0", "2.7.1", "2.8.0", "2.9.1", "2.10.0", "2.11.0", "2.12.1", "2.13.0", "2.14.1"),
    "2.15.0",
)
"""The newest patch of each minor version that is supported."""
OLDEST, NEWEST = VERSIONS[0], VERSIONS[-1]
WITH_SLOW = (OLDEST, DEVELOPMENT, NEWEST)
"""Where the slow tests run too; elsewhere they would take longer than all others together."""
MORE_PYTHONS = ("3.10", "3.12", "3.13", "3.14")
"""The newest torch is tried on these too, where there is such an interpreter."""

_ROOT = Path(__file__).parents[1]
_KEPT = _ROOT / "benchmarks" / "compat.json"
_BANKS = _ROOT / "benchmarks" / "bank_findings.json"
_PAGE = _ROOT / "docs" / "compatibility.md"

# Those that no torch has a part in are run once, with the version of development.
_WITHOUT_TORCH = (
    "tests/lint",
    "tests/reporting",
    "tests/packaging",
    "tests/integrations",  # frameworks pin a torch themselves
    "lint_rules",
)
_QUICK = (
    "tests/torch_compat",
    "tests/auditing/test_loop_bank.py",
    "tests/auditing/detectors/corruption/test_saved_tensor_modified.py",
    "tests/auditing/detectors/corruption/test_saved_tensor_corrupted.py",
    "tests/auditing/test_auditing_torch_names.py",
    "tests/auditing/detectors/functions/test_function_calls.py",
    "tests/auditing/instrumentation/test_restoration.py",
    "tests/e2e/test_demo.py",
    "tests/graph/trace/test_torch_names.py",
    "tests/graph/trace/test_trace.py",
    "tests/graph/recording/test_recording.py",
    "tests/plugin/test_audits.py",
    "tests/verification/diagnosis/test_function_isolation.py",
    "tests/verification/localization/test_localize.py",
    "tests/verification/test_correct_gradients.py",
)


@dataclass(slots=True)
class Outcome:
    """What came of one version.

    ``skipped`` and ``failed`` map tests to reasons. ``limits`` is what the tool says that it can't
    cover there. ``differ`` are subjects of the banks whose findings are not those of the version of
    development, ``reworded`` how many differ in their words alone. ``slow`` says whether the tests
    marked so were among them. ``accused`` are the correct subjects with a warning or an error, None
    where nobody has looked; ``commit`` is that of the tool; ``overhead`` is how many times as long
    as the bare step an audited one took, None where that was not measured.
    """

    torch: str
    python: str
    passed: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    limits: list[str] = field(default_factory=list)
    differ: list[dict[str, Any]] = field(default_factory=list)
    reworded: int = 0
    subjects: int = 0
    slow: bool = False
    minutes: float = 0.0
    accused: list[str] | None = None
    commit: str = ""
    overhead: float | None = None

    @property
    def key(self) -> str:
        """Name the environment."""
        return f"{self.torch} on Python {self.python}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run what is named; return 1 if a test has failed somewhere."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("versions", nargs="*", metavar="VERSION", help="of torch (default: all)")
    parser.add_argument("--quick", action="store_true", help="a few tests, no banks and no page")
    parser.add_argument("--failed", action="store_true", help="again, the tests that had failed")
    parser.add_argument("--overhead", action="store_true", help="only measure the audit's cost")
    parser.add_argument("--without-slow", action="store_true", help="no tests marked slow")
    parser.add_argument("--python", metavar="PATH", help="the interpreter (default: this one)")
    parser.add_argument("--page", action="store_true", help="only write the page anew")
    arguments = parser.parse_args(argv)
    if arguments.page:
        _PAGE.write_text(page(_read(_KEPT)), encoding="utf-8")
        return 0
    pairs = [(version, arguments.python or sys.executable) for version in arguments.versions]
    failures = 0
    if not pairs and arguments.quick:
        pairs = [(version, sys.executable) for version in (OLDEST, NEWEST)]
    for version, python in pairs or _everything():
        print(f"== torch {version}, {python}", flush=True)
        slow = version in WITH_SLOW and not arguments.without_slow
        if arguments.overhead:
            outcome = measure_overhead(version, python)
        elif arguments.failed:
            outcome = try_failed_again(version, python)
        else:
            outcome = try_version(version, python, quick=arguments.quick, slow=slow)
        failures += len(outcome.failed)
        print(
            f"== torch {version}: {outcome.passed} passed, {len(outcome.failed)} failed, "
            f"{len(outcome.differ)} subjects differ, {outcome.minutes:.1f} minutes",
            flush=True,
        )
        for test, reason in outcome.failed.items():
            print(f"   {test}: {reason}", flush=True)
        if not arguments.quick:
            kept = _read(_KEPT)
            kept[outcome.key] = asdict(outcome)
            _KEPT.write_text(json.dumps(_in_order(kept), indent=1) + "\n", encoding="utf-8")
            _PAGE.write_text(page(kept), encoding="utf-8")
    return 1 if failures else 0


def _everything() -> list[tuple[str, str]]:
    pairs = [(version, sys.executable) for version in VERSIONS]
    # First, so that there is something to compare with.
    pairs.sort(key=lambda pair: pair[0] != DEVELOPMENT)
    for minor in MORE_PYTHONS:
        python = shutil.which(f"python{minor}")
        if python is not None:
            pairs.append((NEWEST, python))
    return pairs


def try_version(version: str, python: str, *, quick: bool, slow: bool) -> Outcome:
    """Make an environment with this torch, run tests and banks in it, and remove it."""
    began = time.monotonic()
    outcome = Outcome(version, _version_of(python), slow=slow, commit=_commit())
    with tempfile.TemporaryDirectory(prefix="gradcheck-suite-compat-") as folder:
        own = _environment(Path(folder), version, python)
        report = Path(folder) / "report.xml"
        _run_tests(own, report, paths=_QUICK if quick else (), slow=slow)
        _read_tests(report, outcome)
        limits = "import json, gradcheck_suite._torch_compat as c; print(json.dumps(c.limits()))"
        told = subprocess.run([own, "-c", limits], capture_output=True, text=True, check=False)
        outcome.limits = json.loads(told.stdout or '["the tool can not be loaded"]')
        if not quick:
            found = _findings(own, Path(folder) / "found.json")
            outcome.subjects = sum(map(len, found.values()))
            outcome.accused = _accused(found)
            _compare(_read(_BANKS), found, outcome)
    outcome.minutes = round((time.monotonic() - began) / 60, 1)
    return outcome


def try_failed_again(version: str, python: str) -> Outcome:
    """Run the tests again that had failed with this torch; what it finds is kept as it was.

    Raises:
        KeyError: nothing is kept of this version.
    """
    outcome = Outcome(**_read(_KEPT)[Outcome(version, _version_of(python)).key])
    paths = sorted({_path_of(test) for test in outcome.failed})
    if not paths:
        return outcome
    with tempfile.TemporaryDirectory(prefix="gradcheck-suite-compat-") as folder:
        own = _environment(Path(folder), version, python)
        report = Path(folder) / "report.xml"
        _run_tests(own, report, paths=paths, slow=outcome.slow)
        again = Outcome(version, outcome.python)
        _read_tests(report, again)
    for test in list(outcome.failed):
        if test in again.failed:
            outcome.failed[test] = again.failed[test]
        else:
            del outcome.failed[test]
            if test in again.skipped:
                outcome.skipped[test] = again.skipped[test]
            else:
                outcome.passed += 1
    return outcome


def measure_overhead(version: str, python: str) -> Outcome:
    """Measure what the audit adds to a step with this torch; the rest is kept as it was.

    Raises:
        KeyError: nothing is kept of this version.
    """
    outcome = Outcome(**_read(_KEPT)[Outcome(version, _version_of(python)).key])
    with tempfile.TemporaryDirectory(prefix="gradcheck-suite-compat-") as folder:
        own = _environment(Path(folder), version, python)
        done = subprocess.run(
            [own, "-m", "benchmarks.audit_overhead", "--json"],
            cwd=_ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        (result,) = json.loads(done.stdout)["benchmarks"]
        (audited,) = [row for row in result["rows"] if row["name"] == "gs.audit()"]
        outcome.overhead = round(audited["ratio"], 2)
    return outcome


def _path_of(test: str) -> str:
    """Return the file of a test as ``_read_tests`` names it, where a class may stand in between."""
    path = test.partition(".py::")[0]
    while not (_ROOT / f"{path}.py").exists() and "/" in path:
        path = path.rpartition("/")[0]
    return f"{path}.py"


def _version_of(python: str) -> str:
    named = subprocess.run(
        [python, "-c", "import platform; print(platform.python_version())"],
        capture_output=True,
        text=True,
        check=True,
    )
    return named.stdout.strip()


def _environment(folder: Path, version: str, python: str) -> str:
    """Make the environment and return its interpreter."""
    subprocess.run([python, "-m", "venv", folder / "venv"], check=True)
    own = str(folder / "venv" / "bin" / "python")
    pins = folder / "constraints.txt"
    pinned = (_ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines(keepends=True)
    if _is_older(own):
        pinned = []  # What is pinned is for the Python of development, and some of it for no older.
    # Each torch asks for a sympy and a setuptools of its own.
    pins.write_text(
        "".join(
            line for line in pinned if not line.startswith(("torch==", "sympy==", "setuptools=="))
        ),
        encoding="utf-8",
    )
    # The machine's own constraints could keep a version of torch away.
    settings = {**os.environ, "PIP_CONFIG_FILE": os.devnull, "PIP_CONSTRAINT": str(pins)}
    settings["PIP_BUILD_CONSTRAINT"] = str(pins)
    for wanted in ([f"torch=={version}", "numpy"], ["--editable", f"{_ROOT}[dev]"]):
        subprocess.run(
            [own, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *wanted],
            env=settings,
            check=True,
        )
    return own


def _is_older(python: str) -> bool:
    """Return whether this interpreter is of an older minor version than the one that runs."""
    minor = [python, "-c", "import sys; print(sys.version_info[1])"]
    told = subprocess.run(minor, capture_output=True, text=True, check=True).stdout
    return int(told) < sys.version_info[1]


def _run_tests(own: str, report: Path, *, paths: Sequence[str], slow: bool) -> None:
    marks = "not sweep and not one_torch" + ("" if slow else " and not slow")
    left_out = () if paths else tuple(f"--ignore={path}" for path in _WITHOUT_TORCH)
    subprocess.run(
        [
            *(own, "-m", "pytest", "-q", "-n", "auto", "--dist", "worksteal"),
            *("-m", marks, "--tb", "short", "-p", "no:cacheprovider"),
            *(f"--junitxml={report}", *left_out, *paths),
        ],
        cwd=_ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )


def _read_tests(report: Path, outcome: Outcome) -> None:
    if not report.exists():
        outcome.failed["all"] = "the tests did not come to an end"
        return
    for case in ET.parse(report).getroot().iter("testcase"):
        name = f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}"
        wrong = next((case.find(kind) for kind in ("failure", "error") if _has(case, kind)), None)
        skipped = case.find("skipped")
        if wrong is not None:
            outcome.failed[name] = (wrong.get("message") or "").splitlines()[0][:200]
        elif skipped is not None:
            outcome.skipped[name] = (skipped.get("message") or "").splitlines()[0]
        else:
            outcome.passed += 1


def _has(case: ET.Element, kind: str) -> bool:
    return case.find(kind) is not None


def _findings(own: str, out: Path) -> Found:
    subprocess.run(
        [own, "-m", "benchmarks.bank_findings", "--out", str(out)],
        cwd=_ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    return _read(out)


def _accused(found: Found) -> list[str]:
    """Return the correct subjects that are told an error or a warning."""
    return [
        f"{bank}, {subject}: {line}"
        for bank, subjects in found.items()
        for subject, lines in subjects.items()
        if subject.startswith(_CORRECT)
        for line in lines
        if line.split(" ")[1] in {"error", "warning"}
    ]


_CORRECT = ("correct ", "repaired ", "right,")
"""What the names of subjects begin with in which nothing is wrong."""


def _commit() -> str:
    done = subprocess.run(
        ["git", "rev-parse", "--short=7", "HEAD"],
        cwd=_ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip()


def _compare(before: Found, now: Found, outcome: Outcome) -> None:
    told: list[Difference] = differences(before, now)
    outcome.differ = [asdict(each) for each in told if not each.is_in_words]
    outcome.reworded = sum(each.is_in_words for each in told)


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def _in_order(kept: dict[str, Any]) -> dict[str, Any]:
    def numbers(key: str) -> list[int]:
        return [int(part) for part in key.replace(" on Python ", ".").split(".") if part.isdigit()]

    return {key: kept[key] for key in sorted(kept, key=numbers)}


_HEAD = """\
# Compatibility

Written by `make compat` (`python -m benchmarks.compat`); never edited by hand. The run-time half
(verify, audit, graph, the pytest plugin) works with torch 2.6 and later, lint with any or none;
below 2.6 every command, function and fixture that runs code says so in one line, and nothing else
is harmed. What torch keeps to itself is reached in one place, `gradcheck_suite/_torch_compat/`,
by what is there and not by a version number, so that a later version is worked with until it is
shown otherwise.

Each row is an environment of its own with that torch from PyPI, in which the whole suite ran less
what no torch has a part in (lint, reports, packaging), what is marked as bound to the version of
development, and what needs a training framework or the builder of this site. Tests marked slow,
which start processes of their own, ran where the table says. The banks are the programs that the
tests keep: loops, leaks, writers, silent overwrites, wrong backwards, wrong models and the demo,
each with correct twins; a subject differs where code,
severity or line of a finding is not what it is on torch {development}, or where it could not be
run. *Accused* are correct subjects with an error or a warning. *In words* are subjects whose
findings are the same and told otherwise, mostly as a tensor's name in the graph, the op of torch
that wrote it or the number of tensors alike is another one there.
"""


def page(kept: dict[str, Any]) -> str:
    """Write the page from what is kept."""
    outcomes = [Outcome(**each) for each in _in_order(kept).values()]
    lines = [_HEAD.format(development=DEVELOPMENT)]
    columns: tuple[str, ...] = (
        "torch",
        "Python",
        "slow tests",
        "passed",
        "failed",
        "skipped here alone",
    )
    columns += ("subjects", "accused", "differ", "in words", "commit")
    lines += [f"| {' | '.join(columns)} |", "|---|---|---" + "|---:" * 7 + "|---|"]
    usual = {
        test for outcome in outcomes if outcome.torch == DEVELOPMENT for test in outcome.skipped
    }
    for each in outcomes:
        alone = _alone(each, usual)
        slow = "too" if each.slow else "left out"
        numbers = (each.passed, len(each.failed), len(alone), each.subjects)
        accused = "" if each.accused is None else len(each.accused)
        told = (accused, len(each.differ), each.reworded, each.commit)
        cells = (each.torch, each.python, slow, *numbers, *told)
        lines.append(f"| {' | '.join(map(str, cells))} |")
    measured = [each for each in outcomes if each.overhead is not None]
    if measured:
        lines += ["", "## What the audit costs a step", ""]
        lines += [
            f"- torch {each.key}: {each.overhead:.2f} times the bare step of the digits example "
            "(`python -m benchmarks.audit_overhead`, medians of interleaved runs)."
            for each in measured
        ]
    lines += ["", "## Not covered", ""]
    untried = [each for each in MORE_PYTHONS if not any(_is_of(each, one) for one in outcomes)]
    lines += [
        f"- torch {NEWEST} on Python {each}: not tried so far, or no interpreter was at hand."
        for each in untried
    ]
    limited = [(each.torch, each.limits) for each in outcomes if each.limits]
    lines += [f"- torch {torch}: {limit}." for torch, limits in limited for limit in limits]
    if not limited and not untried:
        lines.append("Nothing: all that the tool can tell is told on each of them.")
    lines += ["", "## Known differences", ""]
    known = list(_known(outcomes, usual))
    lines += known or ["None."]
    wrong = [(each, test, reason) for each in outcomes for test, reason in each.failed.items()]
    if wrong:
        lines += ["", "## Failures", ""]
        lines += [f"- {each.key}: `{test}`: {reason}" for each, test, reason in wrong]
    return "\n".join(lines) + "\n"


def _is_of(minor: str, outcome: Outcome) -> bool:
    return outcome.python.rpartition(".")[0] == minor


def _alone(outcome: Outcome, usual: set[str]) -> list[str]:
    """Return the tests that are skipped here and not everywhere, without modules that need more."""
    return [
        test
        for test, reason in outcome.skipped.items()
        if test not in usual and reason != "collection skipped"
    ]


def _known(outcomes: list[Outcome], usual: set[str]) -> list[str]:
    told = []
    for each in outcomes:
        reasons = Counter(each.skipped[test] for test in _alone(each, usual))
        told += [
            f"- torch {each.key}: {reason} ({count} test{'s' if count > 1 else ''} skipped)."
            for reason, count in reasons.items()
        ]
        told += [f"- {each.key}: correct, and accused: {line}." for line in each.accused or ()]
        told += [
            f"- {each.key}: {one['bank']}, {one['subject']}: {_all_of(one['before'])} on torch "
            f"{DEVELOPMENT}, {_all_of(one['now'])} here."
            for one in each.differ
        ]
    return told


def _all_of(lines: Sequence[str]) -> str:
    return ", ".join(" ".join(line.split(" ")[:3]) for line in lines) or "nothing"


if __name__ == "__main__":
    sys.exit(main())
