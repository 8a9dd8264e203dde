"""What pytest loads at start-up: hooks and fixtures, and none of torch, libcst and rich."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pytest_gradcheck_suite import options
from pytest_gradcheck_suite.auditing import AuditedBlock
from pytest_gradcheck_suite.fixtures import autograd_audit, gradient_check
from pytest_gradcheck_suite.outcomes import add_to_test_report
from pytest_gradcheck_suite.summary import write_summary

if TYPE_CHECKING:
    from collections.abc import Generator

    from pytest import CallInfo, Config, Item, Parser, TerminalReporter, TestReport  # noqa: PT013

__all__ = [
    "autograd_audit",
    "gradient_check",
    "pytest_addoption",
    "pytest_collection_modifyitems",
    "pytest_configure",
    "pytest_runtest_call",
    "pytest_runtest_makereport",
    "pytest_terminal_summary",
]


def pytest_addoption(parser: Parser) -> None:
    """Add the ``--gradcheck-suite-*`` flags."""
    options.add_options(parser)


def pytest_configure(config: Config) -> None:
    """Register the markers and read the settings."""
    options.register(config)


def pytest_collection_modifyitems(items: list[Item]) -> None:
    """Refuse wrong marker arguments before any test runs."""
    for item in items:
        options.audit_mark(item)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: Item) -> Generator[None, Any, Any]:
    """Audit the body of a test that is marked ``autograd_audit``."""
    if options.audit_mark(item) is None:
        return (yield)
    with AuditedBlock(item, with_traceback=False):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: Item,
    call: CallInfo[None],  # noqa: ARG001 - the hook's signature
) -> Generator[None, TestReport, TestReport]:
    """Add to a test's report what was found beside its outcome."""
    test_report = yield
    add_to_test_report(item, test_report)
    return test_report


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    """List the findings that did not fail their tests."""
    write_summary(terminalreporter)
