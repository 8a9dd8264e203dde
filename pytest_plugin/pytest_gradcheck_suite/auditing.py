"""Audit a test, or a part of it, and let the findings decide."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pytest_gradcheck_suite import options
from pytest_gradcheck_suite.outcomes import fail_on_findings, keep_beside_failure
from pytest_gradcheck_suite.runtime import runtime

if TYPE_CHECKING:
    from types import TracebackType

    import pytest

    from gradcheck_suite.severity import Severity

__all__ = ["AuditedBlock"]


class AuditedBlock:
    """Audit the body of a ``with`` statement inside a test.

    Leaving it fails the test if there are findings that are severe enough. An exception from the
    body passes unchanged; the findings then become a section of the test's report.
    """

    def __init__(
        self,
        item: pytest.Item,
        *,
        fail_on: Severity | None = None,
        with_traceback: bool = True,
        **arguments: Any,
    ) -> None:
        self._item = item
        self._fail_on = fail_on
        self._with_traceback = with_traceback
        self._audit = runtime().audit(**arguments)
        self._session: Any = None

    def __enter__(self) -> Any:
        __tracebackhide__ = True
        self._session = self._audit.__enter__()
        return self._session

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> Literal[False]:
        __tracebackhide__ = True
        self._audit.__exit__(kind, error, traceback)
        report = self._session.report
        if error is not None:
            keep_beside_failure(self._item, report)
            return False
        fail_on_findings(
            self._item,
            report,
            fail_on=self._fail_on or options.fail_on(self._item),
            with_traceback=self._with_traceback,
        )
        return False
