"""The fixtures; their docstrings are what ``pytest --fixtures`` shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from gradcheck_suite.errors import UsageError
from pytest_gradcheck_suite import options
from pytest_gradcheck_suite.auditing import AuditedBlock
from pytest_gradcheck_suite.outcomes import fail_on_findings
from pytest_gradcheck_suite.runtime import runtime

if TYPE_CHECKING:
    from collections.abc import Callable

    from gradcheck_suite.findings import Report
    from gradcheck_suite.severity import Severity

__all__ = ["autograd_audit", "gradient_check"]


@pytest.fixture
def gradient_check(request: pytest.FixtureRequest) -> Callable[..., Report]:
    """Check every gradient of a function or module, as in ``gradient_check(model, inputs)``.

    Takes the arguments of ``gradcheck_suite.check_gradients`` and returns its report. The test
    fails with the whole report if there are findings of severity error, or of ``fail_on``.
    """
    suite = runtime()

    def check(
        function: Any, inputs: Any, *, fail_on: str | Severity | None = None, **arguments: Any
    ) -> Report:
        __tracebackhide__ = True
        severity = _severity(fail_on, request.node, call="gradient_check")
        try:
            report: Report = suite.check_gradients(function, inputs, **arguments)
        except UsageError as error:
            # What was asked wrongly is on the test's line, not in ours.
            raise error.with_traceback(None) from None
        fail_on_findings(request.node, report, fail_on=severity, with_traceback=True)
        return report

    return check


@pytest.fixture
def autograd_audit(request: pytest.FixtureRequest) -> Callable[..., AuditedBlock]:
    """Audit a part of the test, in a ``with`` statement.

    ``with autograd_audit(model) as session:`` takes the arguments of ``gradcheck_suite.audit``.
    Leaving the block fails the test with the
    whole report if there are findings of severity error, or of ``fail_on``. If the block raises,
    the exception passes, and the findings follow it in the test's report. To audit the whole
    test, use the marker ``@pytest.mark.autograd_audit``.
    """
    runtime()

    def audited(
        model: Any = None,
        optimizers: Any = None,
        *,
        fail_on: str | Severity | None = None,
        **arguments: Any,
    ) -> AuditedBlock:
        __tracebackhide__ = True
        severity = _severity(fail_on, request.node, call="autograd_audit")
        try:
            return AuditedBlock(
                request.node, fail_on=severity, model=model, optimizers=optimizers, **arguments
            )
        except UsageError as error:
            raise error.with_traceback(None) from None

    return audited


def _severity(value: str | Severity | None, item: pytest.Item, *, call: str) -> Severity:
    __tracebackhide__ = True
    if value is None:
        return options.fail_on(item)
    return options.severity_from(value, subject=f"fail_on of {call}(...)")
