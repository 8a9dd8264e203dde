"""Follow lines by ``sys.settrace``, for Python before 3.12.

There can be one trace function on a thread. Where a debugger or a coverage tool has set one, ours
is not set at all; where one is set while ours is, ours gives way and does not come back.
"""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Any

from gradcheck_suite.auditing.close_watch.places import place_of, watched_place

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType

    from gradcheck_suite.auditing.close_watch.places import Place, WhenEnded

__all__ = ["TracedLines"]


class TracedLines:
    """Follows the thread that starts it, and threads that begin while it runs."""

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
