"""Keep our own frames out of the user's tracebacks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradcheck_suite._runtime.frames import is_ours

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["clean_exception", "hide_own_frames", "without_own_frames"]


def hide_own_frames(traceback: TracebackType | None) -> None:
    """Unlink our frames from a traceback, in place; the first entry stays whosever it is."""
    while traceback is not None:
        following = traceback.tb_next
        while following is not None and is_ours(following):
            following = following.tb_next
        traceback.tb_next = following
        traceback = following


def without_own_frames(traceback: TracebackType | None) -> TracebackType | None:
    """Return the traceback from the first frame that is not ours, with ours unlinked."""
    while traceback is not None and is_ours(traceback):
        traceback = traceback.tb_next
    hide_own_frames(traceback)
    return traceback


def clean_exception(error: BaseException) -> None:
    """Unlink our frames from the traceback of ``error`` and of those that it was raised from."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        current = waiting.pop()
        if current is None or id(current) in seen:
            continue
        seen.add(id(current))
        current.__traceback__ = without_own_frames(current.__traceback__)
        waiting += [current.__cause__, current.__context__]
