"""Turn reports into the outcomes of tests, and findings into the results of the run."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

import pytest

from gradcheck_suite.severity import Severity
from pytest_gradcheck_suite.options import REPORT_FORMATS, settings_of

if TYPE_CHECKING:
    import doctest
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from gradcheck_suite.findings import JSON, Finding, Location, Report

__all__ = [
    "RunResults",
    "add_section",
    "attach_notes",
    "complete_test_report",
    "fail_on_findings",
    "forget_findings",
    "has_ended_early",
    "keep_beside_failure",
    "results_of",
    "write_report_file",
    "write_summary",
]

_SECTION = "gradcheck-suite"
_ATTRIBUTE = "gradcheck_suite"
_PROPERTY = "gradcheck_suite"
_FOUND = pytest.StashKey["list[tuple[Finding, bool]]"]()
_SECTIONS = pytest.StashKey["list[str]"]()


def fail_on_findings(
    item: pytest.Item,
    report: Report,
    *,
    fail_on: Severity,
    allow: frozenset[str] = frozenset(),
    is_excused: Callable[[Finding], bool] | None = None,
    with_traceback: bool,
) -> None:
    """Fail the running test if the report has findings that are severe enough.

    Others are kept for the terminal summary.

    Args:
        item: the test.
        report: what was found in it.
        fail_on: the mildest severity that fails it.
        allow: codes of findings that are dropped.
        is_excused: returns whether a finding fails no test, however severe it is.
        with_traceback: shows the line of the test that led here, for callers that are on the stack
            of the test. For others, the failure comes from the line of the mistake.
    """
    __tracebackhide__ = True
    report = _without(_placed_in_docstrings(item, report), allow)
    severe = report.at_least(fail_on)
    if severe and is_excused is not None:
        severe = tuple(finding for finding in severe if not is_excused(finding))
    _keep_findings(item, report, shown=bool(severe))
    if not severe:
        return
    if with_traceback:
        pytest.fail(str(report))
    _fail_at(severe[0].location or _place_of(item), report)


def _fail_at(place: Location, report: Report) -> None:
    """Fail as if the line of a mistake had raised: debuggers and ``--tb=line`` show that line.

    The test has ended, so that its frames are gone; the innermost would be one of ours.
    """
    failure = pytest.fail.Exception(msg=str(report), pytrace=False)
    code = compile("raise failure", place.path, "exec")
    name = (place.function or code.co_name).rpartition(".")[2]
    exec(
        code.replace(co_firstlineno=max(place.line, 1), co_name=name),
        {"failure": failure, "report": report, "__name__": name},
    )


def _place_of(item: pytest.Item) -> Location:
    from gradcheck_suite.findings import Location  # noqa: PLC0415 - where there are findings

    path, line, name = item.reportinfo()
    return Location(path=str(path or item.path), line=(line or 0) + 1, function=name)


def keep_beside_failure(
    item: pytest.Item, report: Report, *, allow: frozenset[str] = frozenset()
) -> None:
    """Keep a report for a section below the failure that the test itself has raised."""
    report = _without(_placed_in_docstrings(item, report), allow)
    if report.findings:
        add_section(item, str(report))
        _keep_findings(item, report, shown=True)


def _keep_findings(item: pytest.Item, report: Report, *, shown: bool) -> None:
    """Keep findings for the summary, the report file and JUnit's properties."""
    item.stash.setdefault(_FOUND, []).extend((finding, shown) for finding in report.findings)


def add_section(item: pytest.Item, text: str) -> None:
    """Keep a text for a section below the failure of this test."""
    item.stash.setdefault(_SECTIONS, []).append(text)


def forget_findings(item: pytest.Item) -> None:
    """Forget what an earlier run of this test left, as plugins that run tests again make it."""
    _drop(item, _FOUND)
    _drop(item, _SECTIONS)
    item.user_properties[:] = [known for known in item.user_properties if known[0] != _PROPERTY]


def has_ended_early(item: pytest.Item) -> bool:
    """Return whether a ``unittest.TestCase`` has failed or skipped: that raises nothing in pytest.

    What it raised waits on the item, and takes the place of what is raised after it.
    """
    return bool(getattr(item, "_excinfo", None))


def complete_test_report(item: pytest.Item, test_report: pytest.TestReport) -> None:
    """Move what was kept for this test to its report, which travels between xdist's processes."""
    sections = item.stash.get(_SECTIONS, None)
    if sections and test_report.failed:
        test_report.sections.extend((_SECTION, text) for text in sections)
        _drop(item, _SECTIONS)
    found = item.stash.get(_FOUND, None)
    if not found:
        return
    _drop(item, _FOUND)
    setattr(test_report, _ATTRIBUTE, _packed(found))
    properties = [
        (_PROPERTY, f"{f.severity.value} {f.code} {f.rule}: {f.message}") for f, _ in found
    ]
    # JUnit's file is written from those of the tear-down, which starts from the item's.
    item.user_properties.extend(properties)
    test_report.user_properties.extend(properties)


def _drop(item: pytest.Item, key: pytest.StashKey[Any]) -> None:
    """Leave nothing behind: pytest keeps what an item has until the run is over."""
    if key in item.stash:
        del item.stash[key]


def _without(report: Report, allow: frozenset[str]) -> Report:
    if not allow:
        return report
    kept = tuple(finding for finding in report.findings if finding.code not in allow)
    return replace(report, findings=kept)


def _packed(found: list[tuple[Finding, bool]]) -> str:
    # Text: the one form that every way of xdist's to carry a report leaves alone.
    from gradcheck_suite.reporting.json import plain  # noqa: PLC0415 - where there are findings

    return json.dumps(
        [
            {
                "shown": shown,
                "finding": {
                    "code": f.code,
                    "rule": f.rule,
                    "severity": f.severity.value,
                    "message": plain(f.message),
                    "detector": f.detector,
                    "location": _packed_place(f.location),
                    "related": [[_packed_place(r.location), plain(r.message)] for r in f.related],
                    "hint": plain(f.hint),
                    "evidence": plain(f.evidence),
                    "fixable": f.fixable,
                },
            }
            for f, shown in found
        ]
    )


def _packed_place(location: Any) -> list[Any] | None:
    if location is None:
        return None
    names = ("path", "line", "column", "end_line", "end_column", "function")
    return [getattr(location, name) for name in names]


def _unpacked(packed: dict[str, Any]) -> Finding:
    from gradcheck_suite.findings import Finding, Location, Related  # noqa: PLC0415 - as above

    place = packed.pop("location")
    return Finding(
        severity=Severity(packed.pop("severity")),
        location=None if place is None else Location(*place),
        related=tuple(Related(Location(*at), message) for at, message in packed.pop("related")),
        **packed,
    )


# An example of a doctest is compiled as a file of its own, `<doctest mymodule.train[3]>`, whose
# first line is the example's.
_EXAMPLE = re.compile(r"<doctest (?P<name>.+?)\[(?P<number>\d+)\]>")
_PLACE = re.compile(rf"{_EXAMPLE.pattern}:(?P<line>\d+)")
_PROMPT = len(">>> ")


def _placed_in_docstrings(item: pytest.Item, report: Report) -> Report:
    """Return the report with the lines of a doctest's examples as lines of its file.

    The report comes back as it is for other tests, and for a doctest whose line nobody knows.
    """
    test: doctest.DocTest | None = getattr(item, "dtest", None)
    if test is None or test.filename is None or test.lineno is None:
        return report
    from gradcheck_suite.findings import moved_locations  # noqa: PLC0415 - for doctests
    from gradcheck_suite.reporting.paths import display_path  # noqa: PLC0415 - as above

    file, start, examples, name = test.filename, test.lineno, test.examples, test.name

    def example_of(match: re.Match[str]) -> doctest.Example | None:
        number = int(match["number"])
        return examples[number] if match["name"] == name and number < len(examples) else None

    def placed(location: Location) -> Location:
        match = _EXAMPLE.fullmatch(location.path)
        example = match and example_of(match)
        if not example:
            return location
        lines, columns = start + example.lineno, example.indent + _PROMPT
        return replace(
            location,
            path=file,
            line=location.line + lines,
            column=_moved(location.column, columns),
            end_line=_moved(location.end_line, lines),
            end_column=_moved(location.end_column, columns),
        )

    def moved(match: re.Match[str]) -> str:
        example = example_of(match)
        if example is None:
            return match[0]
        return f"{display_path(file)}:{start + example.lineno + int(match['line'])}"

    return replace(
        report,
        findings=tuple(
            replace(
                finding,
                message=_PLACE.sub(moved, finding.message),
                location=finding.location and placed(finding.location),
                related=tuple(
                    replace(related, location=placed(related.location))
                    for related in finding.related
                ),
                hint=finding.hint and _PLACE.sub(moved, finding.hint),
                evidence={
                    key: _PLACE.sub(moved, value) if isinstance(value, str) else value
                    for key, value in finding.evidence.items()
                },
            )
            for finding in report.findings
        ),
        not_covered=tuple(_PLACE.sub(moved, line) for line in report.not_covered),
        ledger=cast("Mapping[str, JSON] | None", moved_locations(report.ledger, placed)),
    )


def _moved(number: int | None, by: int) -> int | None:
    return None if number is None else number + by


_NOTES = "gradcheck_suite_notes"
_RESULTS = pytest.StashKey["RunResults"]()
_MOST_TESTS = 20
_MOST_LINES = 50


@dataclass(frozen=True, slots=True)
class _TestFinding:
    """A finding of a test; ``shown`` where the test's failure or a section of it shows it."""

    test: str
    finding: Any  # a Finding; naming it here would load its module where nothing is found
    shown: bool


@dataclass(slots=True)
class RunResults:
    """What the tests of a run have reported, in this process and in xdist's workers.

    Attributes:
        findings: what was found in tests.
        notes: what was noted of tests, each note with the tests.
        remarks: what concerns no single test.
        tests: how many tests ran.
        write_error: why the file of ``--gradcheck-suite-report`` could not be written, if so.
    """

    findings: list[_TestFinding] = field(default_factory=list)
    notes: dict[str, list[str]] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    tests: int = 0
    write_error: str | None = None

    def add(self, test_report: pytest.TestReport) -> None:
        """Add what one report of one phase of a test carries."""
        runs_again = test_report.outcome == "rerun"  # type: ignore[comparison-overlap]  # pytest-rerunfailures
        if test_report.when == "call" and not runs_again:
            self.tests += 1
        for entry in json.loads(getattr(test_report, _ATTRIBUTE, "[]")):
            shown = entry["shown"] and not runs_again
            self._add_finding(_TestFinding(test_report.nodeid, _unpacked(entry["finding"]), shown))
        for note in getattr(test_report, _NOTES, ()):
            tests = self.notes.setdefault(note, [])
            if test_report.nodeid not in tests:
                tests.append(test_report.nodeid)

    def _add_finding(self, new: _TestFinding) -> None:
        # A test that runs again may make the same mistake again: what shows it once is enough.
        for index, known in enumerate(self.findings):
            if (known.test, known.finding) == (new.test, new.finding):
                self.findings[index] = replace(known, shown=known.shown or new.shown)
                return
        self.findings.append(new)

    def add_remarks(self, lines: list[str]) -> None:
        """Add what concerns no single test."""
        self.remarks.extend(line for line in lines if line not in self.remarks)


def attach_notes(test_report: pytest.TestReport, notes: list[str]) -> None:
    """Let a test's report carry what was noted of the test."""
    if notes:
        setattr(test_report, _NOTES, notes)


def results_of(config: pytest.Config) -> RunResults:
    """Return the results of the run so far."""
    return config.stash.setdefault(_RESULTS, RunResults())


def write_summary(reporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Write what no failure has shown; nothing if there is nothing to say."""
    results = results_of(config)
    settings = settings_of(config)
    if results.write_error is not None:
        reporter.line(f"ERROR: {results.write_error}", red=True)
    elif settings.report is not None:
        reporter.line(f"gradcheck-suite: report written to {settings.report}")
    if not settings.summary:
        return
    _write_section(
        reporter,
        "gradcheck-suite: findings that failed no test",
        [_line(known) for known in results.findings if not known.shown],
    )
    lines = [
        f"{tests[0]}{f' and {len(tests) - 1} more' if len(tests) > 1 else ''}: {note}"
        for note, tests in results.notes.items()
    ]
    _write_section(reporter, "gradcheck-suite: left behind or left out", [*lines, *results.remarks])


def write_report_file(config: pytest.Config, path: Path) -> None:
    """Write all findings of the run to ``path``, the file of ``--gradcheck-suite-report``.

    Folders that are missing are made.

    Raises:
        pytest.UsageError: the file can't be written.
    """
    from gradcheck_suite.findings import Report  # noqa: PLC0415 - for those who ask
    from gradcheck_suite.reporting import write_report  # noqa: PLC0415 - as above

    results = results_of(config)
    report = Report(
        tool="gradcheck-suite pytest",
        findings=_joined(results.findings),
        summary={"tests": results.tests, "seed": settings_of(config).seed},
        not_covered=(
            *(
                f"{note} ({', '.join(tests[:_MOST_TESTS])})"
                for note, tests in results.notes.items()
            ),
            *results.remarks,
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


def _joined(found: list[_TestFinding]) -> tuple[Finding, ...]:
    """Return each mistake once, with the tests that made it."""
    tests: dict[tuple[Any, ...], list[str]] = {}
    first: dict[tuple[Any, ...], Finding] = {}
    for known in found:
        f = known.finding
        at = None if f.location is None else (f.location.path, f.location.line)
        # At the same line, numbers in the message may differ from test to test.
        key = (f.code, f.severity, at, f.message if at is None else "")
        first.setdefault(key, f)
        tests.setdefault(key, []).append(known.test)
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


def _line(known: _TestFinding) -> str:
    f = known.finding
    at = ""
    if f.location is not None:
        from gradcheck_suite.reporting.paths import display_path  # noqa: PLC0415 - for findings

        at = f" ({display_path(f.location.path)}:{f.location.line})"
    return f"{known.test}: {f.severity.value} {f.code} {f.rule}: {f.message}{at}"


def _write_section(reporter: pytest.TerminalReporter, title: str, lines: list[str]) -> None:
    if not lines:
        return
    reporter.section(title)
    for line in lines[:_MOST_LINES]:
        reporter.line(line)
    if len(lines) > _MOST_LINES:
        reporter.line(
            f"... and {len(lines) - _MOST_LINES} more; --gradcheck-suite-report=FILE.json has all"
        )
