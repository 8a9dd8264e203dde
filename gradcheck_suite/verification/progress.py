"""How far a check has come, and when it stops taking up further work.

A check tells whoever started it what begins now and what is known so far. Ctrl-C then leaves what
was concluded.
"""

from __future__ import annotations

import math
import time
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gradcheck_suite.reporting.progress import progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gradcheck_suite.findings import Report

__all__ = ["Deadline", "Watcher", "report_progress", "shown", "watched_by"]


class Watcher:
    """Keeps the latest that a check has told.

    Attributes:
        doing: what the check is at, in words.
    """

    def __init__(self, on_change: Callable[[str], None] | None = None) -> None:
        self.doing = ""
        self._on_change = on_change
        self._report: Callable[[], Report] | None = None

    def on_progress(self, doing: str, report: Callable[[], Report] | None) -> None:
        """Take note of what begins now, and of how to report on what was done before."""
        self.doing = doing
        if report is not None:
            self._report = report
        if self._on_change is not None:
            self._on_change(doing)

    def report(self) -> Report | None:
        """Report what was concluded so far; None if nothing was."""
        return None if self._report is None else self._report()


_watcher: ContextVar[Watcher | None] = ContextVar("watcher", default=None)


@contextmanager
def watched_by(watcher: Watcher | None) -> Iterator[None]:
    """Let the checks of this block tell the watcher; nobody, if it is None."""
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


@contextmanager
def shown(what: str) -> Iterator[None]:
    """Show on a terminal how far the check of this block is, unless somebody watches already."""
    if _watcher.get() is not None:
        yield
        return
    with progress(what) as bar, watched_by(Watcher(lambda at: bar.describe(f"{what}: {at}"))):
        yield


def report_progress(doing: str, report: Callable[[], Report] | None = None) -> None:
    """Tell the watcher, if there is one, what begins now."""
    watcher = _watcher.get()
    if watcher is not None:
        watcher.on_progress(doing, report)


@dataclass(frozen=True, slots=True)
class Deadline:
    """The moment, by ``time.monotonic``, at which a check stops taking up further work."""

    moment: float = math.inf

    @classmethod
    def after(cls, seconds: float | None) -> Deadline:
        """Return the deadline that lies so many seconds ahead; None for none."""
        return cls() if seconds is None else cls(time.monotonic() + seconds)

    @property
    def passed(self) -> bool:
        """Return whether it is too late to begin anything else."""
        return time.monotonic() >= self.moment

    def or_after(self, seconds: float) -> Deadline:
        """Return this deadline or the one so many seconds ahead, whichever comes first."""
        return Deadline(min(self.moment, time.monotonic() + seconds))
