"""Show that long work is alive, on a terminal, once it has lasted for a while."""

from __future__ import annotations

import os
import sys
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TextIO, cast

from gradcheck_suite.reporting.text import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.progress import Progress

__all__ = ["ProgressHandle", "progress"]

_DELAY_SECONDS = 2.0
# Two bars at once would overwrite one another; the one that came first stays.
_terminal = threading.Lock()


class ProgressHandle:
    """Tell how far the work has come; without anybody to tell, do nothing."""

    def advance(self, count: int = 1) -> None:
        """Count ``count`` more units of the work as done."""

    def describe(self, text: str) -> None:
        """Say what is being done now."""


@contextmanager
def progress(description: str, *, total: int | None = None) -> Iterator[ProgressHandle]:
    """Show how far the block has come, on standard error, if it lasts more than 2 seconds.

    Nothing is shown, and rich is not imported, if standard error is no terminal or a dumb one,
    if ``CI`` is set, or if the block is quicker. ``total`` is the number of units that
    ``advance`` will count; without it, the time that has passed is shown. The line is removed
    and the cursor restored at the end, also after an exception or Ctrl-C. Wrap the tool's own
    work in it, not a program that prints: the two would share a line.

    >>> with progress("Checking", total=2) as bar:
    ...     bar.advance()
    """
    stream = sys.stderr
    if not _is_watched(stream):
        yield ProgressHandle()
        return
    bar = _Bar(description, total, stream)
    timer = threading.Timer(_DELAY_SECONDS, bar.show)
    timer.daemon = True
    with suppress(RuntimeError):  # the work matters more than a thread that tells of it
        timer.start()
    try:
        yield bar
    finally:
        timer.cancel()
        bar.close()


def _is_watched(stream: TextIO | None) -> bool:
    if stream is None or os.environ.get("CI") or os.environ.get("TERM") in {"dumb", "unknown"}:
        return False
    try:
        return stream.isatty()
    except (AttributeError, OSError, ValueError):
        return False


class _Bar(ProgressHandle):
    """Keep count from the start, and draw it from the moment that ``show`` is called."""

    def __init__(self, description: str, total: int | None, stream: TextIO) -> None:
        self._lock = threading.Lock()
        self._description = one_line(description)
        self._total = total
        self._stream = stream
        self._done = 0
        self._closed = False
        self._progress: Progress | None = None

    def advance(self, count: int = 1) -> None:
        with self._lock:
            self._done += count
            self._update()

    def describe(self, text: str) -> None:
        with self._lock:
            self._description = one_line(text)
            self._update()

    def show(self) -> None:
        with self._lock:
            # Before rich is loaded, which takes longer than the time between two of them may be.
            if self._closed or not _terminal.acquire(blocking=False):
                return
            drawing = _drawing(self._stream, counted=self._total is not None)
            drawing.add_task(self._description, total=self._total, completed=self._done)
            try:
                drawing.start()
            except RuntimeError:  # the system has no thread left to keep the line moving
                drawing.console.line()
                drawing.console.show_cursor()
                _terminal.release()
            else:
                self._progress = drawing

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if self._progress is not None:
                self._progress.stop()
                self._progress = None
                _terminal.release()

    def _update(self) -> None:
        if self._progress is not None:
            (task,) = self._progress.task_ids
            self._progress.update(task, completed=self._done, description=self._description)


class _Tolerant:
    """A stream that may be closed while the bar is drawn on it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.encoding = getattr(stream, "encoding", None)

    def write(self, text: str) -> int:
        with suppress(OSError, ValueError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            self._stream.flush()

    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._stream.fileno()


def _drawing(stream: TextIO, *, counted: bool) -> Progress:
    from rich.progress import (  # noqa: PLC0415 - only once there is something to draw
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
    )

    from gradcheck_suite.reporting.console import open_console  # noqa: PLC0415 - as above

    columns = [TextColumn("{task.description}", markup=False), BarColumn(bar_width=24)]
    if counted:
        columns.append(MofNCompleteColumn())
    columns.append(TimeElapsedColumn())
    return Progress(
        *columns,
        console=open_console(cast("TextIO", _Tolerant(stream))),
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )
