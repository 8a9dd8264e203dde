"""Lines of running code."""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from types import FrameType

__all__ = ["Lines", "Place", "WhenEnded", "offset_in", "place_of", "watched_place"]

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
