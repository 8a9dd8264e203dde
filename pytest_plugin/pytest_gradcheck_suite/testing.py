"""One test, from its set-up to its report."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gradcheck_suite.auditing import audit_of, forget_audit
from pytest_gradcheck_suite.marks import fail_on, leak_mark, what_is_wrong_with_the_marks_of
from pytest_gradcheck_suite.options import AUDIT, LEAK
from pytest_gradcheck_suite.outcomes import (
    add_to_test_report,
    fail_on_findings,
    forget,
    has_ended_early,
)
from pytest_gradcheck_suite.runtime import runtime
from pytest_gradcheck_suite.settings import settings_of
from pytest_gradcheck_suite.snapshots import forget_snapshots
from pytest_gradcheck_suite.summary import attach_notes
from pytest_gradcheck_suite.upkeep import look, notes_of, repair_after

if TYPE_CHECKING:
    from collections.abc import Generator

__all__ = ["around_body", "begin", "complete", "end"]

_READY = pytest.StashKey[bool]()


def begin(item: pytest.Item) -> None:
    """Begin a test anew: plugins that repeat tests call this again for the same one.

    A marker of ours that asks for what can't be makes the test an error. This comes before
    pytest looks at skip and xfail, which would hide it.
    """
    __tracebackhide__ = True
    forget(item)
    forget_audit(item)
    forget_snapshots(item)
    wrong = what_is_wrong_with_the_marks_of(item)
    if wrong is not None:
        pytest.fail(wrong, pytrace=False)
    look(item, "set-up")


def around_body(item: pytest.Item) -> Generator[None, Any, Any]:
    """Run the body of a test in an audit, and count the graphs it leaves, where asked for."""
    __tracebackhide__ = True
    look(item, "begin")
    try:
        if not _wants_an_audit(item):
            return (yield from _counting_graphs(item))
        runtime(f"@pytest.mark.{AUDIT}")
        if settings_of(item.config).audit is not None:
            _keep_ready(item.config)
        audit = audit_of(item)
        if audit is None:
            return (yield from _counting_graphs(item))
        with audit:
            return (yield from _counting_graphs(item))
    finally:
        look(item, "end")


def _keep_ready(config: pytest.Config) -> None:
    """Make one audit for each test begin and end sooner, until the run is over."""
    if config.stash.get(_READY, False):
        return
    from gradcheck_suite.auditing.session import kept_ready  # noqa: PLC0415 - needs torch

    config.stash[_READY] = True
    stack = ExitStack()
    stack.enter_context(kept_ready())
    config.add_cleanup(stack.close)


def end(item: pytest.Item) -> None:
    """Put right what the test has left behind, and let go of its audit.

    An audit is hundreds of objects, which pytest would keep with the test until the run is over:
    the garbage collector went through those of all earlier tests, again and again.
    """
    repair_after(item)
    forget_audit(item)


def complete(item: pytest.Item, test_report: pytest.TestReport) -> None:
    """Add to a test's report what was found beside its outcome."""
    if test_report.when == "call" and test_report.failed:
        _save_pictures(item)
    add_to_test_report(item, test_report)
    if test_report.when == "teardown":
        attach_notes(test_report, notes_of(item))


def _wants_an_audit(item: pytest.Item) -> bool:
    return (
        settings_of(item.config).audit is not None
        or item.get_closest_marker(AUDIT) is not None
        or "autograd_audit" in getattr(item, "fixturenames", ())
    )


def _counting_graphs(item: pytest.Item) -> Generator[None, Any, Any]:
    __tracebackhide__ = True
    mark = leak_mark(item)
    if mark is None:
        return (yield)
    runtime(f"@pytest.mark.{LEAK}")
    from pytest_gradcheck_suite.leaks import GraphCensus, leak_report  # noqa: PLC0415 - needs torch

    census = GraphCensus()
    result = yield
    for _ in range(mark.steps - 1):
        if has_ended_early(item):
            break
        item.runtest()
    if has_ended_early(item):
        return result
    report = leak_report(item, mark, census.newcomers(near=str(item.path)))
    fail_on_findings(item, report, fail_on=fail_on(item), with_traceback=False)
    return result


def _save_pictures(item: pytest.Item) -> None:
    if "autograd_graph" in getattr(item, "fixturenames", ()):
        from pytest_gradcheck_suite.pictures import save_pictures  # noqa: PLC0415 - needs torch

        save_pictures(item)
