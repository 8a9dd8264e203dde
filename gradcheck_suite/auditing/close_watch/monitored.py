"""Follow lines by ``sys.monitoring``, from Python 3.12 on.

It follows every thread, and leaves debuggers, coverage tools and profilers alone: each has a number
of its own.
"""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Any

from gradcheck_suite.auditing.close_watch.places import place_of, watched_place

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType

    from gradcheck_suite.auditing.close_watch.places import Place, WhenEnded

__all__ = ["MonitoredLines"]

_NAME = "gradcheck-suite"
# The numbers that Python's documentation gives to no kind of tool.
_NUMBERS = (4, 3)


class MonitoredLines:
    """Follows every thread."""

    def __init__(self, ended: WhenEnded, is_watched: Callable[[CodeType], bool]) -> None:
        self._ended = ended
        self._is_watched = is_watched
        self._here = threading.local()
        self._number: int | None = None
        self._monitoring: Any = getattr(sys, "monitoring", None)

    def start(self) -> bool:
        """Begin, unless other tools have all the numbers."""
        monitoring = self._monitoring
        if monitoring is None:
            return False
        free = [number for number in _NUMBERS if monitoring.get_tool(number) is None]
        if not free:
            return False
        self._here.place = watched_place(sys._getframe(1), self._is_watched)  # noqa: SLF001
        number = self._number = free[0]
        monitoring.use_tool_id(number, _NAME)
        wanted = 0
        for event, callback in self._callbacks().items():
            monitoring.register_callback(number, event, callback)
            wanted |= event
        monitoring.set_events(number, wanted)
        return True

    def stop(self) -> None:
        """Give the number back."""
        number, monitoring = self._number, self._monitoring
        if number is None:
            return
        self._number = None
        monitoring.set_events(number, 0)
        for event in self._callbacks():
            monitoring.register_callback(number, event, None)
        monitoring.free_tool_id(number)

    def follows(self, thread: int) -> bool:  # noqa: ARG002 - part of the protocol
        """Return True."""
        return True

    def _callbacks(self) -> dict[int, Callable[..., Any]]:
        events = self._monitoring.events
        return {
            events.LINE: self._line,
            events.PY_START: self._entered,
            events.PY_RESUME: self._entered,
            events.PY_RETURN: self._left,
            events.PY_YIELD: self._left,
            # These two can't be switched off for a place.
            events.PY_THROW: self._thrown_into,
            events.PY_UNWIND: self._unwound,
        }

    def _line(self, code: CodeType, number: int) -> Any:
        if not self._is_watched(code):
            return self._monitoring.DISABLE
        self._move_to((code, number))
        return None

    def _entered(self, code: CodeType, _offset: int) -> Any:
        if not self._is_watched(code):
            return self._monitoring.DISABLE
        self._move_to(place_of(sys._getframe(1)))  # noqa: SLF001 - as for call sites
        return None

    def _left(self, code: CodeType, _offset: int, _value: object) -> Any:
        if not self._is_watched(code):
            return self._monitoring.DISABLE
        self._move_to(watched_place(sys._getframe(1).f_back, self._is_watched))  # noqa: SLF001
        return None

    def _thrown_into(self, code: CodeType, _offset: int, _error: object) -> None:
        if self._is_watched(code):
            self._move_to(place_of(sys._getframe(1)))  # noqa: SLF001 - as above

    def _unwound(self, code: CodeType, _offset: int, _error: object) -> None:
        if self._is_watched(code):
            self._move_to(watched_place(sys._getframe(1).f_back, self._is_watched))  # noqa: SLF001

    def _move_to(self, place: Place | None) -> None:
        before: Place | None = getattr(self._here, "place", None)
        self._here.place = place
        if before is not None:
            self._ended(before)
