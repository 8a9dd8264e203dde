"""What pytest loads at start-up: hooks and fixtures, and none of torch, libcst and rich.

What a run does not use is not imported either: each hook reaches for its module when it has
something to do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pytest_gradcheck_suite.fixtures import autograd_audit, autograd_graph, gradient_check
from pytest_gradcheck_suite.markers import MARKERS
from pytest_gradcheck_suite.options import ACTIVE, add_options, read_settings, settings_of

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

    from pytest_gradcheck_suite.results import RunResults

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
]

_FIXTURES = frozenset({"autograd_audit", "autograd_graph", "gradient_check"})
_WORKER_OUTPUT = "gradcheck_suite"


def pytest_addoption(parser: Parser) -> None:
    """Add the ``--gradcheck-suite-*`` flags."""
    add_options(parser)


def pytest_addhooks(pluginmanager: PytestPluginManager) -> None:
    """Let others give examples."""
    from pytest_gradcheck_suite import hookspecs  # noqa: PLC0415 - beside its only use

    pluginmanager.add_hookspecs(hookspecs)


def pytest_configure(config: Config) -> None:
    """Register the markers and read the settings."""
    for name, marker in MARKERS.items():
        config.addinivalue_line("markers", f"{name}{marker.usage}")
    settings = read_settings(config)
    config.stash[ACTIVE] = False
    if settings.audit is not None or settings.modules:
        _activate(config)
        from pytest_gradcheck_suite.runtime import (  # noqa: PLC0415 - for whole suites
            refuse_to_start_without_torch,
        )

        refuse_to_start_without_torch(
            settings.subject("modules" if settings.audit is None else "audit")
        )
    if settings.modules:
        from pytest_gradcheck_suite.module_tests import take_example_ids  # noqa: PLC0415 - rare

        take_example_ids(config, settings)
    config.pluginmanager.register(_EndOfRun(config), "gradcheck_suite_end_of_run")


def pytest_report_header(config: Config) -> str:
    """Name the seed, and what is done to the whole suite."""
    settings = settings_of(config)
    parts = [f"seed {settings.seed}"]
    if settings.audit is not None:
        parts.append(f"audit of every test, failing on {settings.audit}")
    if settings.modules:
        from pytest_gradcheck_suite.module_tests import (  # noqa: PLC0415 - as above
            examples_are_left_out,
        )

        left_out = examples_are_left_out(config)
        suffix = ", left out as files or tests are named" if left_out else ""
        parts.append(f"examples of {', '.join(settings.modules)}{suffix}")
    return f"gradcheck-suite: {'; '.join(parts)}"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(session: Session, config: Config, items: list[Item]) -> None:
    """Add the examples of packages, and note whether a test uses this plugin."""
    packages = settings_of(config).modules
    if packages:
        from pytest_gradcheck_suite.module_tests import collect_examples  # noqa: PLC0415 - rare

        items.extend(collect_examples(session, packages))
    for item in items:
        marked = any(item.get_closest_marker(name) for name in MARKERS)
        if marked or not _FIXTURES.isdisjoint(getattr(item, "fixturenames", ())):
            _activate(config)


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_setup(item: Item) -> Generator[None, Any, Any]:
    """Forget what an earlier run of the test left, or refuse its markers.

    Last of the wrappers: those of other plugins have to begin, as they end, and what pytest itself
    does, skipping among it, comes after them.
    """
    __tracebackhide__ = True
    if item.config.stash[ACTIVE]:
        from pytest_gradcheck_suite.lifecycle import before_setup  # noqa: PLC0415 - if active

        before_setup(item)
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: Item) -> Generator[None, Any, Any]:
    """Audit the body of a test and count the graphs it leaves, where that is asked for."""
    __tracebackhide__ = True
    if not item.config.stash[ACTIVE]:
        return (yield)
    from pytest_gradcheck_suite.lifecycle import around_body  # noqa: PLC0415 - as above

    return (yield from around_body(item))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: Item) -> Generator[None, Any, Any]:
    """Put right what the test and its fixtures have left behind."""
    __tracebackhide__ = True
    try:
        return (yield)
    finally:
        if item.config.stash[ACTIVE]:
            from pytest_gradcheck_suite.lifecycle import finish  # noqa: PLC0415 - as above

            finish(item)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: Item,
    call: CallInfo[None],  # noqa: ARG001 - the hook's signature
) -> Generator[None, TestReport, TestReport]:
    """Add to a test's report what was found beside its outcome."""
    test_report = yield
    if item.config.stash[ACTIVE]:
        from pytest_gradcheck_suite.lifecycle import complete_report  # noqa: PLC0415 - as above

        complete_report(item, test_report)
    return test_report


class _EndOfRun:
    """Collects what the tests have found, and reports it where there is something to report."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._has_results = False

    def pytest_runtest_logreport(self, report: TestReport) -> None:
        """Collect what a test has found, here or in a worker of xdist's."""
        found = hasattr(report, "gradcheck_suite") or hasattr(report, "gradcheck_suite_notes")
        if found or self._writes_a_file():
            self._results().add(report)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Collect what a worker has to say that concerns no single test."""
        lines = getattr(node, "workeroutput", {}).get(_WORKER_OUTPUT)
        if lines:
            self._results().add_remarks(lines)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the report file; in a worker of xdist's, send what the main process must know."""
        settings = settings_of(self._config)
        lines: list[str] = []
        if settings.modules:
            from pytest_gradcheck_suite.module_tests import remarks_of  # noqa: PLC0415 - rare

            lines = remarks_of(self._config)
        output: dict[str, Any] | None = getattr(self._config, "workeroutput", None)
        if output is not None:
            output[_WORKER_OUTPUT] = lines
            return
        if lines:
            self._results().add_remarks(lines)
        if settings.report is not None:
            from pytest_gradcheck_suite.results import write_report_file  # noqa: PLC0415 - rare

            try:
                write_report_file(self._config, settings.report)
            except pytest.UsageError as error:
                if self._config.pluginmanager.get_plugin("terminalreporter") is None:
                    raise
                # An exception from here would keep back what the whole run has shown.
                self._results().write_error = str(error)
                if session.exitstatus in {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED}:
                    session.exitstatus = pytest.ExitCode.USAGE_ERROR

    def pytest_terminal_summary(self, terminalreporter: TerminalReporter) -> None:
        """Write what failed no test."""
        if self._has_results or self._writes_a_file():
            from pytest_gradcheck_suite.results import write_summary  # noqa: PLC0415 - rare

            write_summary(terminalreporter, self._config)

    def _writes_a_file(self) -> bool:
        return settings_of(self._config).report is not None

    def _results(self) -> RunResults:
        from pytest_gradcheck_suite.results import results_of  # noqa: PLC0415 - something was found

        self._has_results = True
        return results_of(self._config)


def _activate(config: Config) -> None:
    """Note that a test or the whole run uses this plugin, whose modules load from now."""
    from pytest_gradcheck_suite.runtime import import_without_rewriting  # noqa: PLC0415 - if active

    config.stash[ACTIVE] = True
    import_without_rewriting(config)
