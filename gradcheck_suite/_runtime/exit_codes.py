"""How every command ends: its exit status, whatever happens on the way."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import traceback
from typing import TYPE_CHECKING, Final, TextIO

from gradcheck_suite.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = [
    "CLEAN",
    "FINDINGS",
    "INTERRUPTED",
    "USAGE",
    "exit_status",
    "internal_error",
    "own_output",
    "reader_may_leave",
    "stop_writing",
    "writing_output",
]

CLEAN: Final = 0
FINDINGS: Final = 1
USAGE: Final = 2
INTERRUPTED: Final = 130
"""The status of a command that Ctrl-C ended: 128 + SIGINT, as shells count."""


def exit_status(
    name: str,
    run: Callable[[], int],
    *,
    explain: Callable[[Exception], str | None] = lambda _: None,
) -> int:
    """Run a command and turn whatever ends it into an exit status and a message.

    Args:
        name: what the command is called, put before each message.
        run: does the work and returns the status.
        explain: returns what to say of an exception that is not our fault, or None.
    """
    status = _flushed(name, _status_of(name, run, explain))
    _forget_interrupts()
    return status


def _forget_interrupts() -> None:
    """Let the status stand though Ctrl-C came within code that a string was made into.

    CPython notes an interrupt that leaves such code, as a dataclass being made runs it, and kills
    the process with SIGINT at its end although the interrupt was handled. The next code that runs
    from a string takes the note back (run_eval_code_obj in Python/pythonrun.c, 3.8 to 3.13).
    """
    exec("")


def _status_of(
    name: str, run: Callable[[], int], explain: Callable[[Exception], str | None]
) -> int:
    try:
        return run()
    except UsageError as error:
        return _fail(name, str(error))
    except BrokenPipeError as error:
        # The user's code may have pipes of its own.
        message = explain(error)
        if message is not None:
            return _fail(name, message)
        stop_writing()
        return CLEAN
    except KeyboardInterrupt:
        _say(f"{name}: interrupted\n")
        return INTERRUPTED
    except Exception as error:  # noqa: BLE001 - nothing of ours may end in a traceback
        return _failed(name, error, explain)


def _flushed(name: str, status: int) -> int:
    if not _is_open(sys.stdout):
        return status
    try:
        with writing_output():
            sys.stdout.flush()
    except UsageError as error:
        return _fail(name, str(error))
    return status


def _failed(name: str, error: Exception, explain: Callable[[Exception], str | None]) -> int:
    if _comes_of_ctrl_c(error):
        _say(f"{name}: interrupted\n")
        return INTERRUPTED
    message = explain(error)
    if message is not None:
        return _fail(name, message)
    if os.environ.get("GRADCHECK_SUITE_TRACEBACK"):
        traceback.print_exception(error)
    return _fail(name, internal_error(f"{type(error).__name__}: {error}"))


def _comes_of_ctrl_c(error: BaseException) -> bool:
    """Return whether Ctrl-C was turned into another exception, as by a class that is made."""
    seen: BaseException | None = error
    while seen is not None and not isinstance(seen, KeyboardInterrupt):
        seen = seen.__cause__ or seen.__context__
    return seen is not None


def internal_error(what: str) -> str:
    """Return what to say of a failure that is ours."""
    return (
        f"internal error: {what}. This is a bug in gradcheck-suite; "
        "please report it with what GRADCHECK_SUITE_TRACEBACK=1 makes it print"
    )


@contextlib.contextmanager
def reader_may_leave() -> Iterator[None]:
    """Let the reader of our output (head, less) leave early, without losing the exit status."""
    try:
        yield
    except BrokenPipeError:
        stop_writing()


@contextlib.contextmanager
def writing_output() -> Iterator[None]:
    """Write to standard output: a reader who leaves early is no failure, a full disk is one.

    Raises:
        UsageError: standard output can't be written.
    """
    _open_output()
    try:
        with reader_may_leave():
            yield
    except OSError as error:
        stop_writing()
        raise UsageError(f"cannot write to standard output: {error.strerror or error}") from error


@contextlib.contextmanager
def own_output(stdout: TextIO | None) -> Iterator[None]:
    """Write to the standard output that the command began with, within the block.

    The user's code may have put another in its place, such as one that copies what it is given to
    a file, and may have closed this one: then standard error takes its place.
    """
    theirs = sys.stdout
    # What their code has written comes before what we write.
    with contextlib.suppress(AttributeError, OSError, ValueError):
        theirs.flush()
    # None is what Python has for one that was closed before.
    sys.stdout = stdout
    _open_output()
    try:
        yield
    finally:
        sys.stdout = theirs


def stop_writing() -> None:
    """Give up standard output: what waits to be written there, and what follows, is dropped."""
    # Python flushes stdout once more at exit.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(name: str, message: str) -> int:
    _say(f"{name}: error: {message}\n")
    return USAGE


def _say(text: str) -> None:
    # It is None where the process was started without one.
    if sys.stderr is not None:
        sys.stderr.write(text)


def _open_output() -> None:
    """Put standard error in the place of a standard output that is closed."""
    if not _is_open(sys.stdout):
        # Python has None for one that was closed before the command began.
        how = "is closed" if sys.stdout is None else "was closed by your code"
        sys.stdout = sys.stderr if _is_open(sys.stderr) else io.StringIO()
        sys.stdout.write(
            f"gradcheck-suite: standard output {how}; what belongs there goes to standard error\n"
        )


def _is_open(stream: TextIO | None) -> bool:
    try:
        os.fstat(stream.fileno())  # type: ignore[union-attr]  # None has no such method
    except io.UnsupportedOperation:
        return True  # kept in memory
    except (AttributeError, OSError, ValueError):
        return False
    return True
