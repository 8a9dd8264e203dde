"""What pytest loads at start-up: hooks and fixtures, and none of torch, libcst and rich.

What a run does not use is not imported either: each hook reaches for its module when it has
something to do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pytest_gradcheck_suite import options
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

    from pytest_gradcheck_suite.summary import Run

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

_ASKED = pytest.StashKey[Any]()  # Settings, or None where all are the defaults
_FIXTURES = frozenset({"autograd_audit", "autograd_graph", "gradient_check"})
_WORKER_OUTPUT = "gradcheck_suite"


def pytest_addoption(parser: Parser) -> None:
    """Add the ``--gradcheck-suite-*`` flags."""
    options.add_options(parser)


def pytest_addhooks(pluginmanager: PytestPluginManager) -> None:
    """Let others give examples."""
    from pytest_gradcheck_suite import newhooks  # noqa: PLC0415 - beside its only use

    pluginmanager.add_hookspecs(newhooks)


def pytest_configure(config: Config) -> None:
    """Register the markers and read the settings."""
    for line in options.MARKERS:
        config.addinivalue_line("markers", line)
    asked = None
    if options.says_anything(config):
        from pytest_gradcheck_suite.settings import read_settings  # noqa: PLC0415 - else defaults

        asked = read_settings(config)
    config.stash[_ASKED] = asked
    config.stash[options.IN_USE] = asked is not None and (
        asked.audit is not None or bool(asked.modules)
    )
    if config.stash[options.IN_USE]:
        _come_into_use(config)
        _need_torch(asked)
    if asked is not None and asked.modules:
        from pytest_gradcheck_suite.selection import settle  # noqa: PLC0415 - for examples

        settle(config, asked)
    config.pluginmanager.register(_EndOfRun(config), "gradcheck_suite_end_of_run")


def pytest_report_header(config: Config) -> str:
    """Name the seed, and what is done to the whole suite."""
    asked = config.stash[_ASKED]
    parts = [f"seed {0 if asked is None else asked.seed}"]
    if asked is not None and asked.audit is not None:
        parts.append(f"audit of every test, failing on {asked.audit.value}")
    if asked is not None and asked.modules:
        from pytest_gradcheck_suite.selection import are_left_out  # noqa: PLC0415 - as above

        left_out = ", left out as files or tests are named" if are_left_out(config) else ""
        parts.append(f"examples of {', '.join(asked.modules)}{left_out}")
    return f"gradcheck-suite: {'; '.join(parts)}"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(session: Session, config: Config, items: list[Item]) -> None:
    """Add the examples of packages, and note whether a test has a use for this plugin."""
    asked = config.stash[_ASKED]
    if asked is not None and asked.modules:
        from pytest_gradcheck_suite.modules import collect_examples  # noqa: PLC0415 - needs torch

        items.extend(collect_examples(session, asked.modules))
    for item in items:
        marked = any(item.get_closest_marker(name) for name in options.MARKER_NAMES)
        if marked or not _FIXTURES.isdisjoint(getattr(item, "fixturenames", ())):
            _come_into_use(config)


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_setup(item: Item) -> Generator[None, Any, Any]:
    """Begin a test anew, or refuse its markers.

    Last of the wrappers: those of other plugins have to begin, as they end, and what pytest itself
    does, skipping among it, comes after them.
    """
    __tracebackhide__ = True
    if item.config.stash[options.IN_USE]:
        from pytest_gradcheck_suite.testing import begin  # noqa: PLC0415 - for runs that use us

        begin(item)
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: Item) -> Generator[None, Any, Any]:
    """Audit the body of a test and count the graphs it leaves, where that is asked for."""
    __tracebackhide__ = True
    if not item.config.stash[options.IN_USE]:
        return (yield)
    from pytest_gradcheck_suite.testing import around_body  # noqa: PLC0415 - as above

    return (yield from around_body(item))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: Item) -> Generator[None, Any, Any]:
    """Put right what the test and its fixtures have left behind."""
    __tracebackhide__ = True
    try:
        return (yield)
    finally:
        if item.config.stash[options.IN_USE]:
            from pytest_gradcheck_suite.testing import end  # noqa: PLC0415 - as above

            end(item)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: Item,
    call: CallInfo[None],  # noqa: ARG001 - the hook's signature
) -> Generator[None, TestReport, TestReport]:
    """Add to a test's report what was found beside its outcome."""
    test_report = yield
    if item.config.stash[options.IN_USE]:
        from pytest_gradcheck_suite.testing import complete  # noqa: PLC0415 - as above

        complete(item, test_report)
    return test_report


class _EndOfRun:
    """Hears what the tests have found, and tells of it where there is something to tell."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._has_heard = False

    def pytest_runtest_logreport(self, report: TestReport) -> None:
        """Hear what a test has found, here or in a worker of xdist's."""
        heard = hasattr(report, "gradcheck_suite") or hasattr(report, "gradcheck_suite_notes")
        if heard or self._file_is_wanted():
            self._run().hear(report)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Hear what a worker has to say that concerns no single test."""
        lines = getattr(node, "workeroutput", {}).get(_WORKER_OUTPUT)
        if lines:
            self._run().remark(lines)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the report file; in a worker of xdist's, send what the main process must know."""
        asked = self._config.stash[_ASKED]
        lines: list[str] = []
        if asked is not None and asked.modules:
            from pytest_gradcheck_suite.modules import remarks_on  # noqa: PLC0415 - needs torch

            lines = remarks_on(self._config)
        output: dict[str, Any] | None = getattr(self._config, "workeroutput", None)
        if output is not None:
            output[_WORKER_OUTPUT] = lines
            return
        if lines:
            self._run().remark(lines)
        if asked is not None and asked.report is not None:
            from pytest_gradcheck_suite.summary import write_report_file  # noqa: PLC0415 - rare

            try:
                write_report_file(self._config, asked.report)
            except pytest.UsageError as error:
                if self._config.pluginmanager.get_plugin("terminalreporter") is None:
                    raise
                # An exception from here would keep back what the whole run has shown.
                self._run().unwritten = str(error)
                if session.exitstatus in {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED}:
                    session.exitstatus = pytest.ExitCode.USAGE_ERROR

    def pytest_terminal_summary(self, terminalreporter: TerminalReporter) -> None:
        """Tell what failed no test."""
        if self._has_heard or self._file_is_wanted():
            from pytest_gradcheck_suite.summary import write_summary  # noqa: PLC0415 - rare

            write_summary(terminalreporter, self._config)

    def _file_is_wanted(self) -> bool:
        asked = self._config.stash[_ASKED]
        return asked is not None and asked.report is not None

    def _run(self) -> Run:
        from pytest_gradcheck_suite.summary import run_of  # noqa: PLC0415 - something was found

        self._has_heard = True
        return run_of(self._config)


def _come_into_use(config: Config) -> None:
    """Note that a test or the whole run has a use for this plugin, whose modules load from now."""
    from pytest_gradcheck_suite.plain_imports import import_plainly  # noqa: PLC0415 - as above

    config.stash[options.IN_USE] = True
    import_plainly(config)


def _need_torch(asked: Any) -> None:
    """Refuse to start without torch, or with an old one, where every test would need it."""
    from importlib import metadata  # noqa: PLC0415 - for whole suites
    from importlib.util import find_spec  # noqa: PLC0415 - as above

    from gradcheck_suite._torch_floor import complaint_about  # noqa: PLC0415 - as above

    if find_spec("torch") is None:
        raise pytest.UsageError(
            f"{asked.subject('modules' if asked.audit is None else 'audit')} needs PyTorch, which "
            "is not installed here; install it with: pip install 'gradcheck-suite[torch]'"
        )
    try:
        complaint = complaint_about(metadata.version("torch"))
    except metadata.PackageNotFoundError:  # built from source: the tests will tell
        return
    if complaint is not None:
        raise pytest.UsageError(complaint)
