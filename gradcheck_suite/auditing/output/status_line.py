"""Say on a terminal, while the program runs, how far the audit has come."""

from __future__ import annotations

import builtins
import functools
import io
import mmap
import os
import re
import select
import subprocess
import sys
import threading
import weakref
from contextlib import contextmanager, suppress
from time import perf_counter
from typing import TYPE_CHECKING, Any, TextIO

import torch

from gradcheck_suite._runtime.patches import Patches
from gradcheck_suite.auditing.events import BackwardFinished, SessionEnded, StepFinished
from gradcheck_suite.auditing.options import AuditOptions
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gradcheck_suite.auditing.events import Event, Subscriptions
    from gradcheck_suite.auditing.recorder import Recorder
    from gradcheck_suite.findings import Finding

__all__ = ["SharedLine", "StatusLine", "open_shared_line", "status_line"]

_FIRST_SECONDS = 2.0
"""Seconds before the line is drawn first. Chosen: what ends sooner needs none."""

_EVERY_SECONDS = 0.5
"""Seconds between two drawings, at least. Chosen: often enough to be seen to move, and one write to
a terminal in half a second costs nothing."""

_CALIBRATED = 200
"""Saved tensors by which the cost of one is measured: at 4 microseconds each, 1 to 2 milliseconds
in all (shared AMD EPYC, torch 2.13)."""


def status_line(
    recorder: Recorder, findings: Callable[[], tuple[Finding, ...]]
) -> StatusLine | None:
    """Return a status line for an audit, or None where there is no terminal to draw it on."""
    line = open_shared_line()
    return None if line is None else StatusLine(line, recorder, findings)


class StatusLine:
    """Draws step, findings and overhead at most twice a second, from the program's own steps.

    No thread of ours does it: a program with one more thread forks in another way.
    """

    def __init__(
        self,
        line: SharedLine,
        recorder: Recorder,
        findings: Callable[[], tuple[Finding, ...]],
    ) -> None:
        self._line = line
        self._recorder = recorder
        self._findings = findings
        self._began = perf_counter()
        self._due = self._began + _FIRST_SECONDS
        self._measured = 0.0
        self._emit = recorder.bus.emit
        self._per_save = seconds_per_save(recorder)
        # Clocked only where somebody looks on.
        recorder.bus.emit = self._timed_emit  # type: ignore[method-assign]
        recorder.bus.subscribe([self])

    def subscriptions(self) -> Subscriptions:
        """Draw after what a step consists of."""
        return {BackwardFinished: self._draw, StepFinished: self._draw, SessionEnded: self._pause}

    def findings(self) -> list[Finding]:
        """Return nothing: it only tells of what others find."""
        return []

    def close(self) -> None:
        """Take the line away and put everything back."""
        self._line.close()
        if "emit" in vars(self._recorder.bus):
            del self._recorder.bus.emit

    def text(self) -> str:
        """Return what the line says now.

        The overhead is what the audit has measured of its own work, against the rest of the time:
        the cost of what runs between two clocks, which is not all of it.
        """
        recorder = self._recorder
        saved = recorder.saved_tensors
        ours = self._measured + saved.checksum_seconds + recorder.state.saved * self._per_save
        rest = max(perf_counter() - self._began - ours, 1e-9)
        parts = [
            f"step {recorder.state.step:,}"
            if recorder.state.step
            else f"backward {recorder.state.backwards:,}",
            _count(self._findings()),
            f"overhead about {100 * ours / rest:.0f} %",
        ]
        return f"gradcheck-suite audit: {', '.join(parts)}"

    def _draw(self, _event: object) -> None:
        if perf_counter() >= self._due:
            self._line.show(self.text())
            self._due = perf_counter() + _EVERY_SECONDS

    def _pause(self, _event: object) -> None:
        self._line.erase()

    def _timed_emit(self, event: Event) -> None:
        began = perf_counter()
        self._emit(event)
        self._measured += perf_counter() - began


def seconds_per_save(recorder: Recorder) -> float:
    """Return what it costs, apart from checksums, to keep a saved tensor and to hand it back."""
    plain = AuditOptions(checksum_first_steps=0, checksum_every=0)
    pack: Callable[[Any], Any]
    pack, unpack = type(recorder)(plain).hooks
    tensor = torch.zeros(1)
    began = perf_counter()
    for _ in range(_CALIBRATED):
        unpack(pack(tensor))
    return (perf_counter() - began) / _CALIBRATED


def _count(findings: tuple[Finding, ...]) -> str:
    if not findings:
        return "no findings"
    counts = [
        (sum(finding.severity is severity for finding in findings), severity.value)
        for severity in (Severity.ERROR, Severity.WARNING, Severity.NOTE)
    ]
    return ", ".join(f"{n} {word}{'' if n == 1 else 's'}" for n, word in counts if n)


_ERASE = b"\r\x1b[2K"
# Colours move nothing; a carriage return, a backspace or any other sequence does.
_MOVES_THE_CURSOR = re.compile(rb"\r(?!\n)|\x08|\x1b(?!\[[0-9;:]*m)")
_DUMB = frozenset({"", "dumb", "unknown"})
_ENOUGH_COLUMNS = 20
"""Columns below which nothing is drawn. Chosen: the line would be cut before it says anything."""


def open_shared_line() -> SharedLine | None:
    """Return a line on the terminal behind standard error, or None where there is none to use.

    There is none in a pipe, a dumb terminal, under CI, on Windows, and where ``sys.stderr`` is not
    Python's own.
    """
    if os.environ.get("CI") or os.environ.get("TERM", "") in _DUMB or os.name != "posix":
        return None
    below = _file_below(sys.stderr)
    if below is None:
        return None
    own = [below]
    other = _file_below(sys.stdout)
    if other is not None and other is not below:
        own.append(other)
    return SharedLine(own)


def _file_below(stream: TextIO | None) -> io.FileIO | None:
    """Return the file that a text stream writes to in the end, if it is a terminal."""
    buffer = getattr(stream, "buffer", None)
    file = getattr(buffer, "raw", buffer)  # under python -u there is no buffer
    if not isinstance(file, io.FileIO):
        return None
    try:
        return file if file.isatty() else None
    except (OSError, ValueError):
        return None


class SharedLine:
    """Draw and erase one line on a terminal that the watched program writes to as well.

    It is drawn only where nobody can be in its way, and taken away before anybody else writes.
    What Python writes passes through the files beneath ``sys.stdout`` and ``sys.stderr``, whatever
    wraps those; what child processes and C code write does not, so the line keeps away from
    children. Where the program shows that the terminal is its own (it moves the cursor, turns echo
    off, asks for input), nothing is drawn: silence does no harm.

    Args:
        files: terminals; the line is drawn on the first, and writes to any of them erase it.
    """

    def __init__(self, files: list[io.FileIO]) -> None:
        self._terminal = files[0].fileno()
        self._process = os.getpid()
        self._lock = threading.RLock()
        # A forked child has to know, too, whether the line is there.
        self._visible = mmap.mmap(-1, 1)
        self._at_line_start = True
        self._given_up = False
        self._busy = 0
        self._children: list[weakref.ref[subprocess.Popen[Any]]] = []
        self._patches = Patches()
        for file in files:
            self._patches.replace(file, "write", self._watched_write(file.write))
        self._patches.replace(builtins, "input", self._watched_call(builtins.input))
        self._patches.replace(os, "system", self._watched_call(os.system))
        self._patches.replace(
            subprocess.Popen, "__init__", self._watched_start(subprocess.Popen.__init__)
        )

    def show(self, text: str) -> None:
        """Draw ``text``, shortened to the width of the terminal, in place of what is shown."""
        if os.getpid() != self._process:
            return
        with self._lock:
            columns = self._columns()
            if columns < _ENOUGH_COLUMNS:
                self.erase()
                return
            # The cursor stays behind the text, short of the last column, where it would wrap.
            line = text[: columns - 1].encode("ascii", "backslashreplace")
            if self._write(_ERASE + line):
                self._visible[0] = 1

    def erase(self) -> None:
        """Take the line away."""
        if not self._visible[0]:
            return
        with self._holding():
            self._visible[0] = 0
            self._write(_ERASE)

    def close(self) -> None:
        """Take the line away for good and put everything back."""
        if os.getpid() == self._process:
            self.erase()
        self._given_up = True
        self._patches.restore()

    def _columns(self) -> int:
        """Return how wide the line may be; 0 where it may not be drawn."""
        if self._given_up or self._busy or not self._at_line_start or self._child_runs():
            return 0
        try:
            free = _is_ours_to_draw_on(self._terminal)
            return os.get_terminal_size(self._terminal).columns if free else 0
        except OSError:
            # No terminal any more: closed, or redirected beneath Python.
            self._given_up = True
            return 0

    def _write(self, data: bytes) -> bool:
        try:
            # A terminal that was stopped (Ctrl-S) would stop the program too.
            if not select.select([], [self._terminal], [], 0)[1]:
                return False
            os.write(self._terminal, data)
        except (OSError, ValueError):
            self._given_up = True
            return False
        return True

    @contextmanager
    def _holding(self) -> Iterator[None]:
        """Hold the lock, except in a forked child, where its holder may not exist."""
        if os.getpid() != self._process:
            yield
            return
        with self._lock:
            yield

    def _watched_write(self, write: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def watched(data: Any, /) -> Any:
            with self._holding():
                self.erase()
                written = write(data)
                seen = bytes(data)
                if seen:
                    self._at_line_start = seen.endswith(b"\n")
                    self._given_up = self._given_up or _MOVES_THE_CURSOR.search(seen) is not None
            return written

        return watched

    def _watched_call(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def watched(*args: Any, **kwargs: Any) -> Any:
            self.erase()
            self._busy += 1
            try:
                return function(*args, **kwargs)
            finally:
                self._busy -= 1

        return watched

    def _watched_start(self, start: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(start)
        def __init__(self_: subprocess.Popen[Any], *args: Any, **kwargs: Any) -> None:  # noqa: N807
            if kwargs.get("stdout") is None or kwargs.get("stderr") is None:
                self.erase()
                # It may leave a line unfinished: Python's next whole line tells.
                self._at_line_start = False
                self._children.append(weakref.ref(self_))
            start(self_, *args, **kwargs)

        return __init__

    def _child_runs(self) -> bool:
        """Return whether a child process that shares the terminal has not been waited for."""
        if not self._children:
            return False
        running = []
        for reference in self._children:
            child = reference()
            if child is not None and getattr(child, "returncode", 0) is None:
                running.append(reference)
        self._children = running
        return bool(running)


def _is_ours_to_draw_on(terminal: int) -> bool:
    """Return whether the terminal is one, in its usual mode, and this job in its foreground.

    Raises:
        OSError: it is gone.
    """
    import termios  # noqa: PLC0415 - POSIX only

    if _in_curses() or not os.isatty(terminal):
        return False
    try:
        flags = termios.tcgetattr(terminal)[3]
    except termios.error:
        return False
    usual = termios.ICANON | termios.ECHO
    if flags & usual != usual:
        return False
    with suppress(OSError):  # not the terminal that controls this process
        return os.tcgetpgrp(terminal) == os.getpgrp()
    return True


def _in_curses() -> bool:
    """Return whether the program is between ``curses.initscr()`` and ``curses.endwin()``."""
    curses = sys.modules.get("_curses")
    if curses is None:
        return False
    try:
        return not curses.isendwin()
    except curses.error:  # initscr was never called
        return False
