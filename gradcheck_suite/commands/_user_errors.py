"""Tell the user's own exceptions from ours, and show theirs as Python would."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING

from gradcheck_suite._frames import Owner, is_ours, owner_of_file, without_ours

if TYPE_CHECKING:
    from types import TracebackType


def user_traceback(error: BaseException) -> str | None:
    """Format ``error`` from the first frame that is the user's, or return None if none is.

    Without one, it begins with the first frame of a package. Frames that lead there, and frames of
    gradcheck-suite anywhere, are left out: they say nothing about the user's mistake. A
    SyntaxError has no frame of its own and is shown by its file and line.
    """
    if isinstance(error, SyntaxError):
        return "".join(traceback.format_exception_only(type(error), error))
    frames = _from_first(Owner.USER, error.__traceback__)
    frames = frames or _from_first(Owner.PACKAGE, error.__traceback__)
    if frames is None or _raised_by_us(frames):
        return None
    return "".join(traceback.format_exception(type(error), error, without_ours(frames)))


def _from_first(owner: Owner, frames: TracebackType | None) -> TracebackType | None:
    while frames is not None and owner_of_file(frames.tb_frame.f_code.co_filename) is not owner:
        frames = frames.tb_next
    return frames


def _raised_by_us(frames: TracebackType) -> bool:
    last = frames
    while last.tb_next is not None:
        last = last.tb_next
    return is_ours(last)
