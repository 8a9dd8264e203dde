"""What is told of the whole run: at its end, and in a file."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gradcheck_suite.outcomes import Told, told_by
from pytest_gradcheck_suite.settings import REPORT_FORMATS, settings_of

if TYPE_CHECKING:
    from pathlib import Path

    from gradcheck_suite.findings import Finding, Location

__all__ = ["Run", "attach_notes", "run_of", "write_report_file", "write_summary"]

_RUN = pytest.StashKey["Run"]()
_NOTES = "gradcheck_suite_notes"
_MOST_TESTS = 20
_MOST_LINES = 50


@dataclass(slots=True)
class Run:
    """What the tests of a run have told, in this process and in xdist's workers.

    Attributes:
        unwritten: why the file of ``--gradcheck-suite-report`` could not be written, if so.
    """

    told: list[Told] = field(default_factory=list)
    notes: dict[str, list[str]] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    tests: int = 0
    unwritten: str | None = None

    def hear(self, test_report: pytest.TestReport) -> None:
        """Take in one report of one phase of a test."""
        runs_anew = test_report.outcome == "rerun"  # type: ignore[comparison-overlap]  # pytest-rerunfailures
        if test_report.when == "call" and not runs_anew:
            self.tests += 1
        for told in told_by(test_report):
            self._take_in(replace(told, seen=told.seen and not runs_anew))
        for note in getattr(test_report, _NOTES, ()):
            tests = self.notes.setdefault(note, [])
            if test_report.nodeid not in tests:
                tests.append(test_report.nodeid)

    def _take_in(self, told: Told) -> None:
        # A test that runs anew may make the same mistake again: what shows it once is enough.
        for index, known in enumerate(self.told):
            if (known.test, known.finding) == (told.test, told.finding):
                self.told[index] = replace(known, seen=known.seen or told.seen)
                return
        self.told.append(told)

    def remark(self, lines: list[str]) -> None:
        """Take in what concerns no single test."""
        self.remarks.extend(line for line in lines if line not in self.remarks)


def attach_notes(test_report: pytest.TestReport, notes: list[str]) -> None:
    """Let a test's report carry what was noted of the test."""
    if notes:
        setattr(test_report, _NOTES, notes)


def run_of(config: pytest.Config) -> Run:
    """Return what was told so far."""
    return config.stash.setdefault(_RUN, Run())


def write_summary(reporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Tell what no failure has told; nothing if there is nothing to say."""
    run = run_of(config)
    settings = settings_of(config)
    if run.unwritten is not None:
        reporter.line(f"ERROR: {run.unwritten}", red=True)
    elif settings.report is not None:
        reporter.line(f"gradcheck-suite: report written to {settings.report}")
    if not settings.summary:
        return
    unseen = [told for told in run.told if not told.seen]
    _section(
        reporter,
        "gradcheck-suite: findings that failed no test",
        [
            f"{told.test}: {told.finding.severity.value} {told.finding.code} {told.finding.rule}: "
            f"{told.finding.message}{_at(told.finding.location)}"
            for told in unseen
        ],
    )
    lines = [line for note, tests in run.notes.items() for line in _told_of(note, tests)]
    _section(reporter, "gradcheck-suite: left behind or left out", [*lines, *run.remarks])


def write_report_file(config: pytest.Config, path: Path) -> None:
    """Write all findings of the run to ``path``, the file of ``--gradcheck-suite-report``.

    Folders that are missing are made.

    Raises:
        pytest.UsageError: the file can't be written.
    """
    from gradcheck_suite.findings import Report  # noqa: PLC0415 - for those who ask
    from gradcheck_suite.reporting import write_report  # noqa: PLC0415 - as above

    run = run_of(config)
    report = Report(
        tool="gradcheck-suite pytest",
        findings=_joined(run.told),
        summary={"tests": run.tests, "seed": settings_of(config).seed},
        not_covered=(
            *(f"{note} ({', '.join(tests[:_MOST_TESTS])})" for note, tests in run.notes.items()),
            *run.remarks,
        ),
    )
    output_format: Any = REPORT_FORMATS[path.suffix.lower()]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", encoding="utf-8", newline="\n") as stream:
            write_report(report, output_format=output_format, stream=stream)
    except OSError as error:
        raise pytest.UsageError(
            f"{settings_of(config).subject('report')}: cannot write {path}: {error.strerror}"
        ) from error


def _joined(told: list[Told]) -> tuple[Finding, ...]:
    """Tell each mistake once, with the tests that made it."""
    tests: dict[tuple[Any, ...], list[str]] = {}
    first: dict[tuple[Any, ...], Finding] = {}
    for one in told:
        f = one.finding
        at = None if f.location is None else (f.location.path, f.location.line)
        # At the same line, numbers in the message may differ from test to test.
        key = (f.code, f.severity, at, f.message if at is None else "")
        first.setdefault(key, f)
        tests.setdefault(key, []).append(one.test)
    return tuple(
        replace(
            finding,
            evidence={
                **finding.evidence,
                "tests": tuple(tests[key][:_MOST_TESTS]),
                "tests_count": len(tests[key]),
            },
        )
        for key, finding in first.items()
    )


def _told_of(note: str, tests: list[str]) -> list[str]:
    more = f" and {len(tests) - 1} more" if len(tests) > 1 else ""
    return [f"{tests[0]}{more}: {note}"]


def _at(location: Location | None) -> str:
    if location is None:
        return ""
    from gradcheck_suite.reporting.paths import display_path  # noqa: PLC0415 - for findings

    return f" ({display_path(location.path)}:{location.line})"


def _section(reporter: pytest.TerminalReporter, title: str, lines: list[str]) -> None:
    if not lines:
        return
    reporter.section(title)
    for line in lines[:_MOST_LINES]:
        reporter.line(line)
    if len(lines) > _MOST_LINES:
        reporter.line(
            f"... and {len(lines) - _MOST_LINES} more; --gradcheck-suite-report=FILE.json has all"
        )
