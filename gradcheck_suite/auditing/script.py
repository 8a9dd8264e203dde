"""Run a user's script under an audit exactly as Python would run it."""

from __future__ import annotations

import atexit
import importlib.machinery
import importlib.util
import os
import signal
import sys
import threading
import traceback
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

from gradcheck_suite._runtime.packages import folder_that_has, module_command, module_of_file
from gradcheck_suite._runtime.patches import Patches
from gradcheck_suite._runtime.scripts import refuse_no_script
from gradcheck_suite.auditing.distributed.rank_reports import RankReports
from gradcheck_suite.auditing.notebooks import Notebook, read_notebook
from gradcheck_suite.auditing.options import AuditOptions
from gradcheck_suite.auditing.output.report_delivery import say
from gradcheck_suite.auditing.output.tracebacks import clean_exception
from gradcheck_suite.auditing.session import Session
from gradcheck_suite.errors import UsageError
from gradcheck_suite.findings import Report
from gradcheck_suite.reporting.paths import display_path
from gradcheck_suite.reporting.summary import FAILURE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

__all__ = ["ScriptOutcome", "audit_script", "reporting_signals"]

_FAILED = 1
"""The exit status of Python after an exception, and after ``sys.exit("text")``."""

_USAGE = 2
"""The exit status of a wrong call, as of ``argparse``."""

_INTERRUPTED = 130
"""The exit status after an interrupt, as of a shell: 128 and the number of SIGINT, 2."""


@dataclass(frozen=True, slots=True)
class ScriptOutcome:
    """How a script ended under audit.

    ``exit_status`` is the one that Python would have ended with: 1 after an exception, 130 after
    Ctrl-C, and what the script gave to ``sys.exit``. ``ranks`` tells with the other processes,
    where many train together; None for one that trains alone.
    """

    report: Report
    exit_status: int
    ranks: RankReports | None = None


@dataclass(frozen=True, slots=True)
class _Program:
    """A script or module, found and ready to be compiled."""

    name: str
    file: str
    first_on_path: str
    source: bytes | CodeType | Notebook
    spec: importlib.machinery.ModuleSpec | None

    def compiled(self) -> Iterator[CodeType]:
        """Yield the code to run, one after another."""
        if isinstance(self.source, CodeType):
            yield self.source
        elif isinstance(self.source, Notebook):
            yield from self.source.compiled()
        else:
            yield compile(self.source, self.file, "exec", dont_inherit=True)


def audit_script(
    target: str,
    arguments: Sequence[str] = (),
    *,
    as_module: bool = False,
    options: AuditOptions | None = None,
    on_abrupt_exit: Callable[[ScriptOutcome], int] | None = None,
    on_request: Callable[[Report], object] | None = None,
    show_status: bool = False,
) -> ScriptOutcome:
    """Run ``target`` as ``python target arguments`` would, and watch it.

    The code cells of a notebook run as one script, without what only IPython can run.

    The script finds its own ``sys.argv``, ``sys.path[0]`` and ``__main__``, all put back at the
    end. What it raises is shown on standard error as Python shows it, through ``sys.excepthook``,
    and without frames of ours.

    Args:
        target: the path of a script or of a notebook (``.ipynb``), or a module's name.
        arguments: the script's own.
        as_module: ``target`` is a module, to be run as by ``python -m``.
        options: what to look at.
        on_abrupt_exit: called with the outcome so far when the script calls ``os._exit`` or is
            ended by SIGTERM, SIGHUP or SIGQUIT, none of which returns here; the status that it
            returns is used where the script asked for 0.
        on_request: called with the report so far at each SIGUSR1; then, or if ``on_abrupt_exit``
            is given, a script that handles any of these signals itself still does.
        show_status: while the script runs, say on the terminal how far it has come, where there is
            one and the script leaves it alone.

    Raises:
        UsageError: there is no such script or module, or it is a directory, or no notebook of
            Python's.
    """
    # Its report is the outcome's, whatever is made of that.
    session = Session(None, None, replace(options or AuditOptions(), report=False), of_script=True)
    # Before the script can: what it registers runs before this.
    atexit.register(session.ranks.leave)
    main = ModuleType("__main__")
    patches = Patches()
    line = None
    kept_argv, kept_path = sys.argv, list(sys.path)
    kept_main = sys.modules["__main__"]
    try:
        # python -m looks modules up from the working directory.
        program = _find_module(target) if as_module else _find_script(target)
        sys.argv = [program.file if as_module else target, *arguments]
        sys.path[:] = [program.first_on_path, *kept_path[1:]]
        sys.modules["__main__"] = main
        _dress(main, program)
        if isinstance(program.source, Notebook):
            session.place = program.source.placed
            _show_cells(main, program.source)
        if on_abrupt_exit is not None:
            patches.replace(os, "_exit", _reporting_exit(session, on_abrupt_exit))
        if show_status:
            line = session._show_status()  # noqa: SLF001 - a friend of its
        with _signals(session, on_abrupt_exit, on_request):
            status, failure = _run(program, main, session)
    finally:
        if line is not None:
            line.close()
        patches.restore()
        sys.argv, sys.path[:] = kept_argv, kept_path
        sys.modules["__main__"] = kept_main
    return _outcome(session, status, failure and f"{display_path(target)} ended with {failure}")


def _outcome(session: Session, status: int, failure: str | None = None) -> ScriptOutcome:
    ranks = session.ranks if session.ranks.job.look() else None
    report = session.report
    if failure is not None:
        report = replace(report, summary={**report.summary, FAILURE: failure})
    return ScriptOutcome(report=report, exit_status=status, ranks=ranks)


def _run(program: _Program, main: ModuleType, session: Session) -> tuple[int, str | None]:
    """Run the program; return its exit status, and what it raised, by its type's name."""
    try:
        codes = list(program.compiled())
        with session:
            for code in codes:
                exec(code, main.__dict__)
    except SystemExit as stop:
        return _status_of(stop), None
    except BaseException as error:  # noqa: BLE001 - Python would show it and end, so do we
        _show(error, in_cells=isinstance(program.source, Notebook))
        _advise_on_relative_import(error, program)
        status = _INTERRUPTED if isinstance(error, KeyboardInterrupt) else _FAILED
        return status, type(error).__name__
    return 0, None


def _advise_on_relative_import(error: BaseException, program: _Program) -> None:
    """Say how a script is run whose relative imports fail because it has no package."""
    if program.spec is not None or not isinstance(error, ImportError):
        return
    if "relative import with no known parent package" not in str(error):
        return
    place = module_of_file(Path(program.file), levels=1)
    if place is not None:
        folder, name = place
        say(
            "note: a script has no package to import from, with python itself as well; run it as a "
            f"module of its package: {module_command(folder, name)}"
        )


def _show_cells(main: ModuleType, notebook: Notebook) -> None:
    """Let the cells be read, and find what Jupyter gives them."""
    notebook.show_source()
    left_out = notebook.left_out()
    if left_out is not None:
        say(f"note: {left_out}")
    # Outside of a shell, IPython's own returns None too.
    main.__dict__.update(display=_display, get_ipython=lambda: None)


def _display(*things: object, **_options: object) -> None:
    for thing in things:
        print(thing)  # noqa: T201 - what display does where there is no page


def _show(error: BaseException, *, in_cells: bool) -> None:
    clean_exception(error)
    _flush()
    try:
        if in_cells and sys.excepthook is sys.__excepthook__:
            # Before Python 3.13, this hook knows the source of files alone.
            traceback.print_exception(error)
        else:
            sys.excepthook(type(error), error, error.__traceback__)
    except Exception:  # noqa: BLE001 - a hook of the user's that fails itself
        with suppress(OSError, ValueError):  # there is nowhere to show it
            traceback.print_exception(error)
    _flush()


def _status_of(stop: SystemExit) -> int:
    if stop.code is None:
        return 0
    if isinstance(stop.code, int):
        return stop.code & 0xFF
    _flush()
    with suppress(OSError, ValueError):
        print(stop.code, file=sys.stderr)  # noqa: T201 - what Python does with sys.exit("text")
    return _FAILED


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        # The script may have closed it, or what lies beneath it.
        with suppress(AttributeError, OSError, ValueError):
            stream.flush()


def _reporting_exit(
    session: Session, on_abrupt_exit: Callable[[ScriptOutcome], int]
) -> Callable[[int], NoReturn]:
    leave = os._exit
    process = os.getpid()

    def _exit(status: int) -> NoReturn:
        # Forked children, such as the workers of a DataLoader, end this way too.
        if os.getpid() == process:
            session.end_with_those_inside()
            asked = _asked_by(on_abrupt_exit, _outcome(session, status))
            _flush()
            leave(status or asked)
        leave(status)

    return _exit


def _signals(
    session: Session,
    on_abrupt_exit: Callable[[ScriptOutcome], int] | None,
    on_request: Callable[[Report], object] | None,
) -> AbstractContextManager[None]:
    if on_abrupt_exit is None and on_request is None:
        return nullcontext()

    def terminate(number: int) -> None:
        session.end_with_those_inside()
        if on_abrupt_exit is not None:
            _asked_by(on_abrupt_exit, _outcome(session, 128 + number))
        _flush()

    def answer() -> None:
        if on_request is not None:
            try:
                on_request(session.report)
            except UsageError as error:
                print(f"gradcheck-suite: error: {error}", file=sys.stderr)  # noqa: T201 - as above
            _flush()

    return reporting_signals(terminate, answer)


def _asked_by(on_abrupt_exit: Callable[[ScriptOutcome], int], outcome: ScriptOutcome) -> int:
    try:
        return on_abrupt_exit(outcome)
    except UsageError as error:
        # There is nobody left to raise it to: the process ends here.
        print(f"gradcheck-suite: error: {error}", file=sys.stderr)  # noqa: T201 - as above
        return _USAGE


def _find_script(target: str) -> _Program:
    refuse_no_script(target)
    path = Path(target)
    try:
        source = path.read_bytes()
    except OSError as error:
        raise UsageError(f"audit: cannot read {target}: {error.strerror or error}") from error
    file = os.path.abspath(target)  # noqa: PTH100 - Python keeps symlinks in __file__
    is_notebook = path.suffix.lower() == ".ipynb"
    return _Program(
        name="",
        file=file,
        first_on_path=str(path.resolve().parent),
        source=read_notebook(source, target, file) if is_notebook else source,
        spec=None,
    )


def _find_module(name: str) -> _Program:
    here = str(Path.cwd())
    sys.path.insert(0, here)
    spec = _spec_of(name)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = _spec_of(f"{name}.__main__")
    loader = None if spec is None else spec.loader
    code = loader.get_code(spec.name) if spec and hasattr(loader, "get_code") else None  # type: ignore[union-attr]
    if spec is None or code is None:
        folder = None if spec is not None else folder_that_has(name)
        advice = (
            "expected what python -m takes"
            if folder is None
            else f"it lies in {folder}, where Python does not look: {module_command(folder, name)}"
        )
        raise UsageError(
            f"audit: there is no module {name or repr(name)} that can be run; {advice}"
        )
    return _Program(name=name, file=spec.origin or name, first_on_path=here, source=code, spec=spec)


def _spec_of(name: str) -> importlib.machinery.ModuleSpec | None:
    # To look for a.b imports a: what it lacks itself is another matter than that there is no a.
    packages = name.split(".")
    if not all(packages):
        return None
    try:
        return importlib.util.find_spec(name)
    except ModuleNotFoundError as error:
        if error.name in {".".join(packages[:depth]) for depth in range(1, len(packages) + 1)}:
            return None
        raise
    except ValueError:
        return None


def _dress(main: ModuleType, program: _Program) -> None:
    """Give the module the names that Python gives to ``__main__``."""
    spec = program.spec
    loader = (
        spec.loader
        if spec is not None
        else importlib.machinery.SourceFileLoader("__main__", program.file)
    )
    main.__dict__.update(
        __file__=program.file,
        __annotations__={},
        __cached__=None if spec is None else spec.cached,
        __spec__=spec,
        __loader__=loader,
        __package__=None if spec is None else spec.parent,
        __builtins__=__builtins__,
    )


# Asked to end, the terminal has gone, and Ctrl-\. Those of a mistake (SIGSEGV) leave no time.
_ENDING = ("SIGTERM", "SIGHUP", "SIGQUIT")


@contextmanager
def reporting_signals(
    on_termination: Callable[[int], object], on_request: Callable[[], object]
) -> Iterator[None]:
    """Call ``on_termination`` before a signal ends this process, ``on_request`` at each SIGUSR1.

    A process that was given handlers of its own keeps them, or that was told to ignore a signal, as
    ``nohup`` does, and so does a script that asks for either. Children of a script, such as the
    workers of a DataLoader, end as they do without an audit. Does nothing outside of the main
    thread, where no handler can be installed.
    """
    process = os.getpid()
    ending_by: list[int] = []

    def terminate(number: int, _frame: Any) -> None:
        if ending_by and number not in ending_by:
            # One that is sent along with another does not cut the report short.
            return
        ending_by.append(number)
        try:
            if os.getpid() == process and len(ending_by) == 1:
                on_termination(number)
        finally:
            # The process ends by the signal, as whoever waits for it expects.
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    def answer(_number: int, _frame: Any) -> None:
        if os.getpid() == process:
            on_request()

    installed: dict[int, Callable[[int, Any], None]] = {}
    if threading.current_thread() is threading.main_thread():
        handlers: dict[str, Callable[[int, Any], None]] = dict.fromkeys(_ENDING, terminate)
        handlers["SIGUSR1"] = answer
        for name, handler in handlers.items():
            number = getattr(signal, name, None)
            if number is not None and signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, handler)
                installed[number] = handler
    try:
        yield
    finally:
        for number, ours in installed.items():
            if signal.getsignal(number) is ours:
                signal.signal(number, signal.SIG_DFL)
