"""Check gradients in a test: what the fixture ``gradient_check`` gives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from gradcheck_suite._runtime.frames import is_ours, without_ours
from gradcheck_suite.errors import UsageError
from pytest_gradcheck_suite.audit import auditor_of
from pytest_gradcheck_suite.markers import check_marker
from pytest_gradcheck_suite.markers import fail_on as fail_on_severity
from pytest_gradcheck_suite.options import seed_for, settings_of, severity_from
from pytest_gradcheck_suite.results import fail_on_findings
from pytest_gradcheck_suite.runtime import runtime

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from gradcheck_suite.findings import Report
    from gradcheck_suite.severity import Severity

__all__ = ["GradientCheck"]


class GradientCheck:
    """Checks gradients in one test, with the options of its ``gradient_check`` markers."""

    def __init__(self, item: pytest.Item) -> None:
        self._item = item
        self._options = check_marker(item) or {}
        self._snapshots: set[Path] = set()

    def __call__(
        self,
        function: Any,
        inputs: Any,
        *,
        check: bool = True,
        fail_on: str | Severity | None = None,
        **arguments: Any,
    ) -> Report:
        """Check every gradient; the test fails if one is wrong, unless ``check`` is False."""
        __tracebackhide__ = True
        options = {"seed": seed_for(self._item), **self._options, **arguments}
        of_marker = options.pop("fail_on", None)
        fail_on = of_marker if fail_on is None else fail_on
        severity = self._severity(fail_on, "gradient_check(...)")
        try:
            report: Report = runtime().check_gradients(function, inputs, **options)
        except BaseException as error:  # noqa: BLE001 - goes on as it is
            raise self._without_own_frames(error)  # noqa: B904 - the same
        self._decide(report, severity if check else None)
        return report

    def accumulation(
        self,
        make: Any,
        train: Callable[[Any, list[Any], int], object],
        batch: Any,
        *,
        check: bool = True,
        fail_on: str | Severity | None = None,
        **arguments: Any,
    ) -> Report:
        """Fail if gradients that a loop accumulates are not those of the full batch.

        Takes the arguments of ``gradcheck_suite.check_accumulation`` and returns its report; with
        ``check=False`` the test never fails here.

        Args:
            make: returns what the loop trains, such as ``(model, optimizer)``; or that itself, of
                which copies are trained.
            train: the loop, called as ``train(state, batches, accumulation_steps)``.
            batch: a full batch, which is cut into ``micro_batches``, 4 by default.
            check: whether the test fails at all.
            fail_on: the mildest severity that fails it.
            **arguments: ``micro_batches``, ``loss``, ``split``, ``seed``.
        """
        __tracebackhide__ = True
        fail_on = self._options.get("fail_on") if fail_on is None else fail_on
        severity = self._severity(fail_on, "gradient_check.accumulation(...)")
        arguments = {"seed": seed_for(self._item), **arguments}
        try:
            report: Report = runtime().check_accumulation(make, train, batch, **arguments)
        except BaseException as error:  # noqa: BLE001 - goes on as it is
            raise self._without_own_frames(error)  # noqa: B904 - the same
        self._decide(report, severity if check else None)
        return report

    def snapshot(
        self,
        function: Any,
        inputs: Any,
        *,
        kwargs: Mapping[str, Any] | None = None,
        name: str | None = None,
        seed: int = 0,
    ) -> None:
        """Fail if the gradients are not those that are stored beside the test.

        What is compared are random projections of the gradients of ``sum(cotangent * output)``,
        with respect to the parameters of a module and to the inputs that require grad. The
        tolerance is the rounding noise, as measured in both types.

        Args:
            function: a module or a function.
            inputs: a tensor, a tuple of arguments, or a dict of keyword arguments.
            kwargs: further keyword arguments.
            name: tells several snapshots of one test apart.
            seed: seeds the cotangents, and the random draws of the function.
        """
        __tracebackhide__ = True
        from pytest_gradcheck_suite.snapshots import (  # noqa: PLC0415 - few tests have any
            compare_or_store,
            snapshot_path,
        )

        path = snapshot_path(self._item, name)
        if path in self._snapshots:
            pytest.fail(
                f"two snapshots of this test would share {path.name}: give each a name, as in "
                "gradient_check.snapshot(model, inputs, name='encoder')"
            )
        self._snapshots.add(path)
        update = settings_of(self._item.config).update_snapshots
        try:
            compare_or_store(path, function, inputs, kwargs=kwargs, seed=seed, update=update)
        except BaseException as error:  # noqa: BLE001 - goes on as it is
            raise self._without_own_frames(error)  # noqa: B904 - the same

    def _severity(self, value: str | Severity | None, subject: str) -> Severity:
        if value is None:
            return fail_on_severity(self._item)
        return severity_from(value, subject=f"fail_on of {subject}")

    def _decide(self, report: Report, fail_on: Severity | None) -> None:
        """Fail the test if the report has findings that are severe enough, where there is any."""
        __tracebackhide__ = True
        if fail_on is not None:
            fail_on_findings(
                self._item,
                report,
                fail_on=fail_on,
                allow=auditor_of(self._item).allowed,
                with_traceback=True,
            )

    def _without_own_frames(self, error: BaseException) -> BaseException:
        """Take our frames out of the traceback of what a check has raised.

        What was asked wrongly is on the test's line, not in ours. Our frames stay where
        ``--full-trace`` asks for all of them, and where what raised is ours.
        """
        if isinstance(error, UsageError):
            error.__cause__, error.__suppress_context__ = None, True
            return error.with_traceback(None)
        last = error.__traceback__
        while last is not None and last.tb_next is not None:
            last = last.tb_next
        if self._item.config.getoption("fulltrace", False) or last is None or is_ours(last):
            return error
        return error.with_traceback(without_ours(error.__traceback__))
