"""Follow which line of running code is executed: by ``sys.monitoring``, or by ``sys.settrace``."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import CodeType
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    from types import FrameType

__all__ = [
    "Lines",
    "MonitoredLines",
    "Place",
    "TracedLines",
    "WhenEnded",
    "offset_in",
    "place_of",
    "watched_place",
]

Place: TypeAlias = tuple[CodeType, int]
"""A line: its code object and its number in the file."""

WhenEnded: TypeAlias = Callable[[Place], None]
"""Called when a line has ended on this thread, whether or not it will go on later.

It must not raise: what it raised would reach the user's program.
"""


class Lines(Protocol):
    """Follows which line of the user's code runs, and tells when it has ended."""

    def start(self) -> bool:
        """Begin; return whether this is possible now."""
        ...

    def stop(self) -> None:
        """Take everything away that ``start`` has put in place; harmless if nothing is."""
        ...

    def follows(self, thread: int) -> bool:
        """Return whether the lines of the thread of this number are followed, if it is alive."""
        ...


def place_of(frame: FrameType) -> Place:
    """Return the line that runs in this frame."""
    # A frame between two lines has no number in Python 3.10 and later.
    number: int | None = frame.f_lineno
    return frame.f_code, frame.f_code.co_firstlineno if number is None else number


def watched_place(
    frame: FrameType | None, is_watched: Callable[[CodeType], bool]
) -> tuple[CodeType, int] | None:
    """Return the line that runs in the innermost watched frame, from this one outwards."""
    while frame is not None:
        if is_watched(frame.f_code):
            return place_of(frame)
        frame = frame.f_back
    return None


def offset_in(place: Place) -> int:
    """Return an offset of the line in its code object, for a ``CallSite``."""
    code, wanted = place
    for start, _, number in code.co_lines():
        if number == wanted:
            return start
    return 0


_NAME = "gradcheck-suite"
_NUMBERS = (4, 3)
"""The numbers that Python's documentation gives to no kind of tool: debuggers have 0, coverage
tools 1, profilers 2 and optimizers 5."""


class MonitoredLines:
    """Follows every thread by ``sys.monitoring``, from Python 3.12 on.

    Debuggers, coverage tools and profilers are left alone: each has a number of its own.
    """

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


class TracedLines:
    """Follows the thread that starts it and those that begin later, by ``sys.settrace``.

    There can be one trace function on a thread. Where a debugger or a coverage tool has set one,
    ours is not set at all; where one is set while ours is, ours gives way and does not come back.
    """

    def __init__(self, ended: WhenEnded, is_watched: Callable[[CodeType], bool]) -> None:
        self._ended = ended
        self._is_watched = is_watched
        self._here = threading.local()
        self._running = False
        self._threads: set[int] = set()
        # Bound once, so that they can be told from trace functions of somebody else.
        self._enter = self._entered
        self._go_on = self._went_on
        self._replaced: list[tuple[int, CodeType, Any]] = []

    def start(self) -> bool:
        """Begin on this thread, unless somebody else traces it, or the threads it may begin."""
        if sys.gettrace() is not None or threading.gettrace() is not None:
            return False
        self._running = True
        self._threads = {threading.get_ident()}
        frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - as for call sites
        self._here.place = watched_place(frame, self._is_watched)
        while frame is not None:
            if self._is_watched(frame.f_code):
                # By number, as holding on to a frame would keep its variables alive.
                self._replaced.append((id(frame), frame.f_code, frame.f_trace))
                frame.f_trace = self._go_on
            frame = frame.f_back
        threading.settrace(self._enter)
        sys.settrace(self._enter)
        return True

    def stop(self) -> None:
        """Stop on this thread; any other one stops at its next event."""
        if not self._running:
            return
        self._running = False
        before = {(number, code): trace for number, code, trace in self._replaced}
        self._replaced.clear()
        frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - as above
        while frame is not None:
            if frame.f_trace is self._go_on:
                frame.f_trace = before.get((id(frame), frame.f_code))
            frame = frame.f_back
        if threading.gettrace() is self._enter:
            threading.settrace(None)
        if sys.gettrace() is self._enter:
            sys.settrace(None)

    def follows(self, thread: int) -> bool:
        """Return whether this thread started us, or began while we ran."""
        return thread in self._threads

    def _entered(self, frame: FrameType, _event: str, _argument: object) -> Any:
        if not self._running:
            # Started while we ran, on a thread that nobody could reach since.
            sys.settrace(None)
            return None
        self._threads.add(threading.get_ident())
        if not self._is_watched(frame.f_code):
            return None
        self._move_to(place_of(frame))
        return self._go_on if self._is_running() else None

    def _went_on(self, frame: FrameType, event: str, _argument: object) -> Any:
        if not self._running:
            frame.f_trace = None
            return None
        if event == "line":
            self._move_to(place_of(frame))
        elif event == "return":
            self._move_to(watched_place(frame.f_back, self._is_watched))
        return self._go_on if self._is_running() else None

    def _is_running(self) -> bool:
        """Return whether nobody has stopped us, as what looks at the end of a line may do."""
        return self._running

    def _move_to(self, place: Place | None) -> None:
        before: Place | None = getattr(self._here, "place", None)
        self._here.place = place
        if before is not None:
            self._ended(before)
