"""What pytest loads at start-up: hooks and fixtures, and none of torch, libcst and rich.

What a run does not use is not imported either: each hook reaches for its module when it has
something to do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pytest_gradcheck_suite import settings
from pytest_gradcheck_suite.fixtures import autograd_audit, autograd_graph, gradient_check

if TYPE_CHECKING:
    from collections.abc import Generator

    from pytest import (  # noqa: PT013
        CallInfo,
        Config,
        Item,
        Parser,
        PytestPluginManager,
        Session,
        TerminalReporter,
        TestReport,
    )

__all__ = [
    "autograd_audit",
    "autograd_graph",
    "gradient_check",
    "pytest_addhooks",
    "pytest_addoption",
    "pytest_collection_modifyitems",
    "pytest_configure",
    "pytest_report_header",
    "pytest_runtest_call",
    "pytest_runtest_makereport",
    "pytest_runtest_setup",
    "pytest_runtest_teardown",
    "pytest_sessionfinish",
    "pytest_terminal_summary",
]

_IN_USE = pytest.StashKey[bool]()
_FIXTURES = frozenset({"autograd_audit", "autograd_graph", "gradient_check"})
_WORKER_OUTPUT = "gradcheck_suite"


def pytest_addoption(parser: Parser) -> None:
    """Add the ``--gradcheck-suite-*`` flags."""
    settings.add_options(parser)


def pytest_addhooks(pluginmanager: PytestPluginManager) -> None:
    """Let others give examples."""
    from pytest_gradcheck_suite import newhooks  # noqa: PLC0415 - beside its only use

    pluginmanager.add_hookspecs(newhooks)


def pytest_configure(config: Config) -> None:
    """Register the markers and read the settings."""
    for line in settings.MARKERS:
        config.addinivalue_line("markers", line)
    asked = settings.read_settings(config)
    config.stash[_IN_USE] = asked.audit is not None or bool(asked.modules)
    if config.stash[_IN_USE]:
        _need_torch()
    config.pluginmanager.register(_Reports(config), "gradcheck_suite_reports")


def pytest_report_header(config: Config) -> str | None:
    """Name the seed and what is done to the whole suite; nothing if that is the default."""
    asked = settings.settings_of(config)
    parts = [f"seed {asked.seed}"]
    if asked.audit is not None:
        parts.append(f"audit of every test, failing on {asked.audit.value}")
    if asked.modules:
        parts.append(f"examples of {', '.join(asked.modules)}")
    return f"gradcheck-suite: {'; '.join(parts)}"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(session: Session, config: Config, items: list[Item]) -> None:
    """Add the examples of packages, and refuse wrong marker arguments before any test runs."""
    asked = settings.settings_of(config)
    if asked.modules:
        from pytest_gradcheck_suite.modules import collect_examples  # noqa: PLC0415 - needs torch

        items.extend(collect_examples(session, asked.modules))
    for item in items:
        marked = any(item.get_closest_marker(name) for name in settings.MARKER_NAMES)
        if marked:
            from pytest_gradcheck_suite.marks import check_marks  # noqa: PLC0415 - for marked ones

            check_marks(item)
        if marked or not _FIXTURES.isdisjoint(getattr(item, "fixturenames", ())):
            config.stash[_IN_USE] = True


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: Item) -> Generator[None, Any, Any]:
    """Begin a test anew."""
    if item.config.stash[_IN_USE]:
        from pytest_gradcheck_suite.testing import begin  # noqa: PLC0415 - for runs that use us

        begin(item)
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: Item) -> Generator[None, Any, Any]:
    """Audit the body of a test and count the graphs it leaves, where that is asked for."""
    if not item.config.stash[_IN_USE]:
        return (yield)
    from pytest_gradcheck_suite.testing import around_body  # noqa: PLC0415 - as above

    return (yield from around_body(item))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: Item) -> Generator[None, Any, Any]:
    """Put right what the test and its fixtures have left behind."""
    try:
        return (yield)
    finally:
        if item.config.stash[_IN_USE]:
            from pytest_gradcheck_suite.testing import end  # noqa: PLC0415 - as above

            end(item)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: Item,
    call: CallInfo[None],  # noqa: ARG001 - the hook's signature
) -> Generator[None, TestReport, TestReport]:
    """Add to a test's report what was found beside its outcome."""
    test_report = yield
    if item.config.stash[_IN_USE]:
        from pytest_gradcheck_suite.testing import complete  # noqa: PLC0415 - as above

        complete(item, test_report)
    return test_report


class _Reports:
    """The hooks that are not told the configuration."""

    def __init__(self, config: Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: TestReport) -> None:
        """Hear what a test has found, here or in a worker of xdist's."""
        heard = hasattr(report, "gradcheck_suite") or hasattr(report, "gradcheck_suite_notes")
        if heard or settings.settings_of(self._config).report is not None:
            _run_of(self._config).hear(report)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Hear what a worker has to say that concerns no single test."""
        lines = getattr(node, "workeroutput", {}).get(_WORKER_OUTPUT)
        if lines:
            _run_of(self._config).remark(lines)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: Session) -> None:
    """Write the report file; in a worker of xdist's, send what the main process must know."""
    config = session.config
    asked = settings.settings_of(config)
    lines: list[str] = []
    if asked.modules:
        from pytest_gradcheck_suite.modules import remarks_on  # noqa: PLC0415 - needs torch

        lines = remarks_on(config)
    output: dict[str, Any] | None = getattr(config, "workeroutput", None)
    if output is not None:
        output[_WORKER_OUTPUT] = lines
        return
    if lines:
        _run_of(config).remark(lines)
    if asked.report is not None:
        from pytest_gradcheck_suite.summary import write_report_file  # noqa: PLC0415 - as above

        write_report_file(config)


def pytest_terminal_summary(terminalreporter: TerminalReporter, config: Config) -> None:
    """Tell what failed no test."""
    from pytest_gradcheck_suite.summary import write_summary  # noqa: PLC0415 - at the end

    write_summary(terminalreporter, config)


def _run_of(config: Config) -> Any:
    from pytest_gradcheck_suite.summary import run_of  # noqa: PLC0415 - where something was found

    return run_of(config)


def _need_torch() -> None:
    """Refuse to start without torch where every test would need it."""
    from importlib.util import find_spec  # noqa: PLC0415 - for whole suites

    if find_spec("torch") is None:
        raise pytest.UsageError(
            "--gradcheck-suite-audit and --gradcheck-suite-modules need PyTorch, which is not "
            "installed here; install it with: pip install 'gradcheck-suite[torch]'"
        )
