"""Hand over the report of an audit that has ended, without getting in the program's way."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar, cast

from gradcheck_suite._runtime.exit_codes import internal_error
from gradcheck_suite.reporting import format_of_file, write_report, write_report_file

if TYPE_CHECKING:
    from gradcheck_suite.auditing.options import ReportTarget
    from gradcheck_suite.findings import Report

__all__ = ["deliver", "in_a_test", "of_rank", "say"]

_Target = TypeVar("_Target")


def in_a_test() -> bool:
    """Return whether this code runs in a test of pytest's, which tells of what it finds itself.

    Processes that a test starts inherit the variable, and are no test.
    """
    return "PYTEST_CURRENT_TEST" in os.environ and "pytest" in sys.modules


def of_rank(target: _Target, rank: int) -> _Target:
    """Return ``target`` with the rank for ``{rank}``, if it is the name of a file.

    >>> of_rank("audit-{rank}.json", 3)
    'audit-3.json'
    """
    named = target.replace("{rank}", str(rank)) if isinstance(target, str) else target
    return cast("_Target", named)


def deliver(report: Report, target: ReportTarget, *, failing: bool) -> None:
    """Hand ``report`` to ``target``: True is standard error, a path a file, else a function.

    What can't be written costs a line on standard error, and the program nothing.

    Args:
        report: of the audit that ended.
        target: as ``AuditOptions.report`` has it.
        failing: whether an exception of the program's is on its way; one of the function then
            becomes a line on standard error, so that the program's is the one that arrives.

    Raises:
        BaseException: what the function raises, where no other exception is on its way.
    """
    if target is True:
        _print(report)
    elif isinstance(target, (str, os.PathLike)):
        _write(report, os.fspath(target))
    elif callable(target):
        try:
            target(report)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            if not failing:
                raise
            say(f"the function that was given the report raised {_named(error)}")


def _print(report: Report) -> None:
    stream = sys.stderr
    if stream is None or stream.closed:
        return
    with suppress(OSError):  # a full disk, a terminal that is gone
        stream.write("\n")
        try:
            write_report(report, output_format="full", stream=stream)
        except Exception as error:
            if isinstance(error, OSError):
                raise
            # Ours: the findings are not lost with it.
            say(internal_error(f"the report can't be drawn: {_named(error)}"))
            write_report(report, output_format="concise", stream=stream)


def _write(report: Report, path: str) -> None:
    try:
        write_report_file(report, path, output_format=format_of_file(path))
    except Exception as error:  # noqa: BLE001 - as above
        _print(report)
        reason = (error.strerror or error) if isinstance(error, OSError) else _named(error)
        say(
            f"cannot write the report to {path}: {reason}; it is above instead. Expected a file in "
            "a folder that exists and can be written"
        )


def say(text: str) -> None:
    """Say something of ours on standard error, if that takes it."""
    with suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(f"gradcheck-suite: {text}\n")
        sys.stderr.flush()


def _named(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
