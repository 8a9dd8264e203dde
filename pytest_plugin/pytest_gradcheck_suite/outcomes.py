"""Turn a report into the outcome of a test, or into words beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import pytest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gradcheck_suite.findings import Report
    from gradcheck_suite.severity import Severity

__all__ = ["Remark", "add_to_test_report", "fail_on_findings", "keep_beside_failure", "remarks_of"]

Remark: TypeAlias = "Mapping[str, str]"
"""A finding that did not fail its test: severity, code, rule and message."""

_SECTION = "gradcheck-suite"
_ATTRIBUTE = "gradcheck_suite_remarks"
_REMARKS = pytest.StashKey[list[dict[str, str]]]()
_SECTIONS = pytest.StashKey[list[str]]()


def fail_on_findings(
    item: pytest.Item, report: Report, *, fail_on: Severity, with_traceback: bool
) -> None:
    """Fail the running test if the report has findings that are severe enough.

    Milder findings are kept for the terminal summary. ``with_traceback`` shows the line of the
    test that led here, for callers that are on the stack of the test.
    """
    __tracebackhide__ = True
    if report.at_least(fail_on):
        pytest.fail(str(report), pytrace=with_traceback)
    item.stash.setdefault(_REMARKS, []).extend(
        {
            "severity": finding.severity.value,
            "code": finding.code,
            "rule": finding.rule,
            "message": finding.message,
        }
        for finding in report.findings
    )


def keep_beside_failure(item: pytest.Item, report: Report) -> None:
    """Keep a report for a section below the failure that the test itself has raised."""
    if report.findings:
        item.stash.setdefault(_SECTIONS, []).append(str(report))


def add_to_test_report(item: pytest.Item, test_report: pytest.TestReport) -> None:
    """Move what was kept for this test to its report, which travels between xdist's processes."""
    if test_report.when != "call":
        return
    sections = item.stash.get(_SECTIONS, [])
    if test_report.failed:
        test_report.sections.extend((_SECTION, text) for text in sections)
    remarks = item.stash.get(_REMARKS, [])
    if remarks:
        setattr(test_report, _ATTRIBUTE, remarks)
    item.stash[_SECTIONS] = []
    item.stash[_REMARKS] = []


def remarks_of(test_report: object) -> tuple[Remark, ...]:
    """Return the findings that a finished test has passed with."""
    return tuple(getattr(test_report, _ATTRIBUTE, ()))
