"""What other threads may have written while a line ran."""

from __future__ import annotations

import sys
import threading
from pathlib import PurePath
from typing import TYPE_CHECKING

from gradcheck_suite._frames import Owner, owner_of_file

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

__all__ = ["another_may_have_written"]

_WAITING = frozenset(
    {
        "asyncio",
        "concurrent",
        "multiprocessing",
        "queue.py",
        "selectors.py",
        "socket.py",
        "socketserver.py",
        "ssl.py",
        "subprocess.py",
        "threading.py",
    }
)
_POOLS = ("concurrent/futures/thread.py", "multiprocessing/pool.py")


def another_may_have_written(follows: Callable[[int], bool]) -> bool:
    """Return whether a thread other than this one may have written since this one last looked.

    Threads that run nothing of the user's (a progress bar's, a kernel's) do not count, but the
    workers of a pool do. One inside those parts of the standard library that wait (for a lock, a
    queue, a socket) is idle. It may have been at work a moment before: if its lines are followed,
    it has looked itself by then.

    Args:
        follows: whether the lines of the thread of this number are followed.
    """
    own = threading.get_ident()
    return any(
        _works_for_the_user(frame) and not (_is_waiting(frame) and follows(thread))
        for thread, frame in sys._current_frames().items()  # noqa: SLF001 - its public name
        if thread != own
    )


def _is_waiting(frame: FrameType) -> bool:
    name = frame.f_code.co_filename
    return owner_of_file(name) is Owner.PYTHON and not _WAITING.isdisjoint(PurePath(name).parts)


def _works_for_the_user(innermost: FrameType) -> bool:
    frame: FrameType | None = innermost
    while frame is not None:
        name = frame.f_code.co_filename
        if owner_of_file(name) is Owner.USER or name.replace("\\", "/").endswith(_POOLS):
            return True
        frame = frame.f_back
    return False
