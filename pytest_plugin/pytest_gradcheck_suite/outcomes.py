"""Turn a report into the outcome of a test, and carry findings to whoever tells of them."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest

from gradcheck_suite.severity import Severity
from pytest_gradcheck_suite.doctests import placed_in_docstrings

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gradcheck_suite.findings import Finding, Location, Report

__all__ = [
    "Told",
    "add_section",
    "add_to_test_report",
    "fail_on_findings",
    "forget",
    "has_ended_early",
    "keep_beside_failure",
    "note_findings",
    "told_by",
]

_SECTION = "gradcheck-suite"
_ATTRIBUTE = "gradcheck_suite"
_PROPERTY = "gradcheck_suite"
_FOUND = pytest.StashKey["list[tuple[Finding, bool]]"]()
_SECTIONS = pytest.StashKey["list[str]"]()


@dataclass(frozen=True, slots=True)
class Told:
    """A finding that came with a test report.

    ``seen`` says that the test's failure or a section of it has shown the finding already.
    """

    test: str
    finding: Any  # a Finding; naming it here would load its module at start-up
    seen: bool


def fail_on_findings(
    item: pytest.Item,
    report: Report,
    *,
    fail_on: Severity,
    allow: frozenset[str] = frozenset(),
    lenient: bool = False,
    with_traceback: bool,
) -> None:
    """Fail the running test if the report has findings that are severe enough.

    Milder findings, and what fails only tests that ask where it is ``lenient``, are kept for the
    terminal summary.

    ``with_traceback`` shows the line of the test that led here, for callers that are on the stack
    of the test. For others, the failure comes from the line of the mistake.
    """
    __tracebackhide__ = True
    report = _without(placed_in_docstrings(item, report), allow)
    severe = report.at_least(fail_on)
    if severe and lenient:
        from pytest_gradcheck_suite.leniency import fails_only_who_asks  # noqa: PLC0415 - rare

        severe = tuple(finding for finding in severe if not fails_only_who_asks(finding, item))
    note_findings(item, report.findings, seen=bool(severe))
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
    report = _without(placed_in_docstrings(item, report), allow)
    if report.findings:
        add_section(item, str(report))
        note_findings(item, report.findings, seen=True)


def note_findings(item: pytest.Item, findings: Iterable[Finding], *, seen: bool) -> None:
    """Keep findings for the summary, the report file and JUnit's properties."""
    item.stash.setdefault(_FOUND, []).extend((finding, seen) for finding in findings)


def add_section(item: pytest.Item, text: str) -> None:
    """Keep a text for a section below the failure of this test."""
    item.stash.setdefault(_SECTIONS, []).append(text)


def forget(item: pytest.Item) -> None:
    """Forget what an earlier run of this test left, as plugins that run tests again make it."""
    _drop(item, _FOUND)
    _drop(item, _SECTIONS)
    item.user_properties[:] = [known for known in item.user_properties if known[0] != _PROPERTY]


def has_ended_early(item: pytest.Item) -> bool:
    """Return whether a ``unittest.TestCase`` has failed or skipped: that raises nothing in pytest.

    What it raised waits on the item, and takes the place of what is raised after it.
    """
    return bool(getattr(item, "_excinfo", None))


def add_to_test_report(item: pytest.Item, test_report: pytest.TestReport) -> None:
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


def told_by(test_report: object) -> tuple[Told, ...]:
    """Return the findings that came with a test report, from this process or another."""
    packed = getattr(test_report, _ATTRIBUTE, None)
    if packed is None:
        return ()
    test = getattr(test_report, "nodeid", "")
    return tuple(
        Told(test, _finding(entry["finding"]), entry["seen"]) for entry in json.loads(packed)
    )


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
                "seen": seen,
                "finding": {
                    "code": f.code,
                    "rule": f.rule,
                    "severity": f.severity.value,
                    "message": plain(f.message),
                    "detector": f.detector,
                    "location": _place(f.location),
                    "related": [[_place(r.location), plain(r.message)] for r in f.related],
                    "hint": plain(f.hint),
                    "evidence": plain(f.evidence),
                    "fixable": f.fixable,
                },
            }
            for f, seen in found
        ]
    )


def _place(location: Any) -> list[Any] | None:
    if location is None:
        return None
    names = ("path", "line", "column", "end_line", "end_column", "function")
    return [getattr(location, name) for name in names]


def _finding(packed: dict[str, Any]) -> Finding:
    from gradcheck_suite.findings import Finding, Location, Related  # noqa: PLC0415 - as above

    place = packed.pop("location")
    return Finding(
        severity=Severity(packed.pop("severity")),
        location=None if place is None else Location(*place),
        related=tuple(Related(Location(*at), message) for at, message in packed.pop("related")),
        **packed,
    )
