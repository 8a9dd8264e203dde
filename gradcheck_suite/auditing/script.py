"""Run a user's script under an audit exactly as Python would run it."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import signal
import sys
import traceback
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, NoReturn

from gradcheck_suite._patches import Patches
from gradcheck_suite.auditing.options import AuditOptions
from gradcheck_suite.auditing.session import Session
from gradcheck_suite.auditing.signals import reporting_signals
from gradcheck_suite.auditing.tracebacks import clean_exception
from gradcheck_suite.errors import UsageError
from gradcheck_suite.findings import Report

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager


__all__ = ["ScriptOutcome", "audit_script"]

_FAILED = 1
_USAGE = 2
_INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class ScriptOutcome:
    """How a script ended under audit.

    ``exit_status`` is the one that Python would have ended with: 1 after an exception, 130 after
    Ctrl-C, and what the script gave to ``sys.exit``.
    """

    report: Report
    exit_status: int


@dataclass(frozen=True, slots=True)
class _Program:
    """A script or module, found and ready to be compiled."""

    name: str
    file: str
    first_on_path: str
    source: bytes | CodeType
    spec: importlib.machinery.ModuleSpec | None


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

    The script finds its own ``sys.argv``, ``sys.path[0]`` and ``__main__``, all put back at the
    end. What it raises is shown on standard error as Python shows it, through ``sys.excepthook``,
    and without frames of ours.

    Args:
        target: the path of a script, or a module's name.
        arguments: the script's own.
        as_module: ``target`` is a module, to be run as by ``python -m``.
        options: what to look at.
        on_abrupt_exit: called with the outcome so far when the script calls ``os._exit`` or is
            ended by SIGTERM, neither of which returns here; the status that it returns is used
            where the script asked for 0.
        on_request: called with the report so far at each SIGUSR1; then, or if ``on_abrupt_exit``
            is given, a script that handles SIGTERM or SIGUSR1 itself still does.
        show_status: while the script runs, say on the terminal how far it has come, where there is
            one and the script leaves it alone.

    Raises:
        UsageError: there is no such script or module, or it is a directory.
    """
    session = Session(None, None, options or AuditOptions())
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
        if on_abrupt_exit is not None:
            patches.replace(os, "_exit", _reporting_exit(session, on_abrupt_exit))
        if show_status:
            line = session._show_status()  # noqa: SLF001 - a friend of its
        with _signals(session, on_abrupt_exit, on_request):
            status = _run(program, main, session)
    finally:
        if line is not None:
            line.close()
        patches.restore()
        sys.argv, sys.path[:] = kept_argv, kept_path
        sys.modules["__main__"] = kept_main
    return ScriptOutcome(report=session.report, exit_status=status)


def _run(program: _Program, main: ModuleType, session: Session) -> int:
    try:
        code = program.source
        if not isinstance(code, CodeType):
            code = compile(code, program.file, "exec", dont_inherit=True)
        with session:
            exec(code, main.__dict__)
    except SystemExit as stop:
        return _status_of(stop)
    except BaseException as error:  # noqa: BLE001 - Python would show it and end, so do we
        _show(error)
        return _INTERRUPTED if isinstance(error, KeyboardInterrupt) else _FAILED
    return 0


def _show(error: BaseException) -> None:
    clean_exception(error)
    _flush()
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except Exception:  # noqa: BLE001 - a hook of the user's that fails itself
        traceback.print_exception(error)
    _flush()


def _status_of(stop: SystemExit) -> int:
    if stop.code is None:
        return 0
    if isinstance(stop.code, int):
        return stop.code & 0xFF
    _flush()
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
            session.__exit__(None, None, None)
            asked = _asked_by(on_abrupt_exit, ScriptOutcome(session.report, status))
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

    def terminate() -> None:
        session.__exit__(None, None, None)
        if on_abrupt_exit is not None:
            _asked_by(on_abrupt_exit, ScriptOutcome(session.report, 128 + signal.SIGTERM))
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
    path = Path(target)
    if not target:
        raise UsageError("audit: expected a Python script, or -m MODULE, got ''")
    if path.is_dir():
        raise UsageError(f"audit: {target} is a directory; give it a Python script, or -m MODULE")
    try:
        source = path.read_bytes()
    except FileNotFoundError:
        raise UsageError(
            f"audit: there is no file {target}; expected a Python script, or -m MODULE"
        ) from None
    except OSError as error:
        raise UsageError(f"audit: cannot read {target}: {error.strerror or error}") from error
    return _Program(
        name="",
        file=os.path.abspath(target),  # noqa: PTH100 - Python keeps symlinks in __file__
        first_on_path=str(path.resolve().parent),
        source=source,
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
        raise UsageError(
            f"audit: there is no module {name or repr(name)} that can be run; "
            "expected what python -m takes"
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
