"""Which steps of a long loop of short steps are passed over, to keep down what an audit adds.

What an audit adds to a step shows in the time that steps take with it and without it, right after
each other in the same run. Where that is more than it may add, a part of the steps goes unwatched,
and only so many. Nothing is passed over in the first steps, in which most mistakes show.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from gradcheck_suite.auditing.options import AuditOptions

__all__ = ["StepSampler"]

_FIRST: Final = 200
"""So many steps are watched before any is passed over. Chosen: most mistakes show in the first
steps, and what each adds matters in a long loop only."""

_WATCHED: Final = 10
"""So many in a row are watched between pauses: some detectors look at each eighth step only."""

_TRIED: Final = 5
"""So many in a row are passed over to learn how long a step takes then. Chosen: the first is not
timed, and the median of the other four bears one that is off."""

_MOST: Final = 40
"""So many in a row are passed over at most. With ``_WATCHED``, a fifth of the steps is still
watched, which brings what is added down to a fifth and no further."""

_ENOUGH: Final = 6
"""Comparisons that are made before any is believed. Chosen: their median bears two that are far
off."""

_COMPARED: Final = 16
"""Comparisons, the latest, whose median counts. Chosen: enough to smooth what one varies by, few
enough to follow a loop that changes."""

_ASKED_AGAIN: Final = 2_000
"""Steps, at most, until a loop that is cheap to watch is asked again; before, as many as it has
had. The six trials, of five steps each, pass over 1.5 % of 2,000."""


class StepSampler:
    """Times steps and says after which of them to pause, and for how many.

    Args:
        options: say what the audit may add, and rule out pauses where each step is to be watched.

    Attributes:
        next: the number of finished steps from which on a pause may begin.
    """

    def __init__(self, options: AuditOptions) -> None:
        self._target = options.overhead / 100
        watches_all = options.max_steps is not None or math.isinf(self._target)
        self.next = sys.maxsize if watches_all else _FIRST
        self._watched: deque[float] = deque(maxlen=_WATCHED)
        self._passed: list[float] = []
        # What the audit has added to a step by its neighbours, as a part of the time it takes.
        self._added: deque[float] = deque(maxlen=_COMPARED)
        self._last: float | None = None

    def take_time(self, step: int, now: float, *, watched: bool) -> None:
        """Note that the step of this number has ended ``now``, in seconds."""
        if watched and step < self.next - _WATCHED:
            return
        if self._last is not None:
            (self._watched if watched else self._passed).append(now - self._last)
        self._last = now

    def begin(self) -> None:
        """Begin a pause: the next step begins in another way than it ends, and is not timed."""
        self._last = None
        self._passed.clear()

    def end(self) -> None:
        """End a pause, and compare its steps with those before it."""
        self._last = None
        if self._passed and self._watched:
            without = statistics.median(self._passed)
            self._added.append(statistics.median(self._watched) / max(without, 1e-9) - 1)
        self._passed.clear()
        self._watched.clear()

    def length(self, step: int) -> int:
        """Return for how many steps to pause after this one, if at all, and plan the next pause."""
        if len(self._added) < _ENOUGH:
            self.next = step + _TRIED + _WATCHED
            return _TRIED
        added = statistics.median(self._added)
        if added <= self._target:
            self.next = step + min(step, _ASKED_AGAIN)
            self._added.clear()
            self._last = None
            return 0
        length = _MOST
        if self._target:
            length = max(1, min(_MOST, round(_WATCHED * (added / self._target - 1))))
        self.next = step + length + _WATCHED
        return length

    def postpone(self, step: int) -> None:
        """Ask again some steps later: there can be no pause after this one."""
        self.next = step + _WATCHED
