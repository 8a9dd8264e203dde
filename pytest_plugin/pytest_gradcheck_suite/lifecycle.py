"""One test, from its set-up to its report."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gradcheck_suite.audit import audit_of, forget_audit
from pytest_gradcheck_suite.isolation import notes_of, record_state, restore_state
from pytest_gradcheck_suite.markers import fail_on, leak_marker, problem_with_markers
from pytest_gradcheck_suite.options import settings_of
from pytest_gradcheck_suite.results import (
    attach_notes,
    complete_test_report,
    fail_on_findings,
    forget_findings,
    has_ended_early,
)
from pytest_gradcheck_suite.runtime import runtime

if TYPE_CHECKING:
    from collections.abc import Generator

__all__ = ["around_body", "before_setup", "complete_report", "finish"]

_AUDITS_ARE_KEPT_READY = pytest.StashKey[bool]()


def before_setup(item: pytest.Item) -> None:
    """Forget what an earlier run of the test left, and refuse its markers if they are wrong.

    Plugins that repeat tests call this again for the same one. A marker of ours that asks for what
    can't be makes the test an error. This comes before pytest looks at skip and xfail, which would
    hide it.
    """
    __tracebackhide__ = True
    forget_findings(item)
    forget_audit(item)
    problem = problem_with_markers(item)
    if problem is not None:
        pytest.fail(problem, pytrace=False)
    record_state(item, "set-up")


def around_body(item: pytest.Item) -> Generator[None, Any, Any]:
    """Run the body of a test in an audit, and count the graphs it leaves, where asked for."""
    __tracebackhide__ = True
    record_state(item, "begin")
    try:
        if not _wants_an_audit(item):
            return (yield from _counting_graphs(item))
        runtime("@pytest.mark.autograd_audit")
        if settings_of(item.config).audit is not None:
            _keep_audits_ready(item.config)
        audit = audit_of(item)
        if audit is None:
            return (yield from _counting_graphs(item))
        with audit:
            return (yield from _counting_graphs(item))
    finally:
        record_state(item, "end")


def _keep_audits_ready(config: pytest.Config) -> None:
    """Make one audit for each test begin and end sooner, until the run is over."""
    if config.stash.get(_AUDITS_ARE_KEPT_READY, False):
        return
    from gradcheck_suite.auditing.session import kept_ready  # noqa: PLC0415 - needs torch

    config.stash[_AUDITS_ARE_KEPT_READY] = True
    stack = ExitStack()
    stack.enter_context(kept_ready())
    config.add_cleanup(stack.close)


def finish(item: pytest.Item) -> None:
    """Put right what the test has left behind, and let go of its audit.

    An audit is hundreds of objects, which pytest would keep with the test until the run is over:
    the garbage collector went through those of all earlier tests, again and again.
    """
    restore_state(item)
    forget_audit(item)


def complete_report(item: pytest.Item, test_report: pytest.TestReport) -> None:
    """Add to a test's report what was found beside its outcome."""
    if test_report.when == "call" and test_report.failed:
        _save_graphs(item)
    complete_test_report(item, test_report)
    if test_report.when == "teardown":
        attach_notes(test_report, notes_of(item))


def _wants_an_audit(item: pytest.Item) -> bool:
    return (
        settings_of(item.config).audit is not None
        or item.get_closest_marker("autograd_audit") is not None
        or "autograd_audit" in getattr(item, "fixturenames", ())
    )


def _counting_graphs(item: pytest.Item) -> Generator[None, Any, Any]:
    __tracebackhide__ = True
    marker = leak_marker(item)
    if marker is None:
        return (yield)
    runtime("@pytest.mark.no_graph_leak")
    from pytest_gradcheck_suite.leaks import GraphCensus, leak_report  # noqa: PLC0415 - needs torch

    census = GraphCensus()
    result = yield
    for _ in range(marker.steps - 1):
        if has_ended_early(item):
            break
        item.runtest()
    if has_ended_early(item):
        return result
    report = leak_report(item, marker, census.newcomers(near=str(item.path)))
    fail_on_findings(item, report, fail_on=fail_on(item), with_traceback=False)
    return result


def _save_graphs(item: pytest.Item) -> None:
    if "autograd_graph" in getattr(item, "fixturenames", ()):
        from pytest_gradcheck_suite.graph_artifacts import save_graphs  # noqa: PLC0415 - needs torch

        save_graphs(item)
