"""Tell the user's own exceptions from ours, and show theirs as Python would."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING

from gradcheck_suite._frames import Owner, is_ours, owner_of_file

if TYPE_CHECKING:
    from types import TracebackType


def user_traceback(error: BaseException) -> str | None:
    """Format ``error`` from the first frame that is the user's, or return None if none is.

    Frames of gradcheck-suite and of the import system that lead to the user's code are left out:
    they say nothing about the user's mistake. A SyntaxError has no frame of its own and is shown
    by its file and line.
    """
    if isinstance(error, SyntaxError):
        return "".join(traceback.format_exception_only(type(error), error))
    frames = error.__traceback__
    while frames is not None and not _is_users(frames):
        frames = frames.tb_next
    if frames is None or _raised_by_us(frames):
        return None
    return "".join(traceback.format_exception(type(error), error, frames))


def _is_users(frames: TracebackType) -> bool:
    owner = owner_of_file(frames.tb_frame.f_code.co_filename)
    return owner in {Owner.USER, Owner.PACKAGE}


def _raised_by_us(frames: TracebackType) -> bool:
    last = frames
    while last.tb_next is not None:
        last = last.tb_next
    return is_ours(last)
