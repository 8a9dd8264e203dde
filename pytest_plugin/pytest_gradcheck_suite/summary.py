"""Say at the end what tests have passed with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gradcheck_suite.outcomes import remarks_of

if TYPE_CHECKING:
    import pytest

__all__ = ["write_summary"]


def write_summary(reporter: pytest.TerminalReporter) -> None:
    """Write one line for each finding that did not fail its test; nothing if there are none."""
    lines = [
        f"{test_report.nodeid}: {remark['severity']} {remark['code']} {remark['rule']}: "
        f"{remark['message']}"
        for reports in reporter.stats.values()
        for test_report in reports
        for remark in remarks_of(test_report)
    ]
    if not lines:
        return
    reporter.section("gradcheck-suite: findings that failed no test")
    for line in lines:
        reporter.line(line)
