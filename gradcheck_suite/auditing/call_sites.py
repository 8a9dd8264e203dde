"""Which line of the user's code is running."""

from __future__ import annotations

import dis
import inspect
import linecache
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, cast

import torch

from gradcheck_suite._runtime.frames import Owner, folder_prefix, owner_of_file
from gradcheck_suite.findings import Location

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from types import CodeType, FrameType, TracebackType

__all__ = [
    "CallSite",
    "call_site",
    "called_by_the_user",
    "exact_call_site",
    "innermost_frames",
    "innermost_site",
    "is_of_library",
    "is_of_torch",
    "is_user_code",
    "kind_of_file",
    "line_that_drops",
    "location_of",
    "sites_up_to_library",
    "user_files_with",
    "user_frames",
    "user_sites",
    "variables_of",
]


CallSite: TypeAlias = "tuple[CodeType, int] | tuple[CodeType, int, CodeType, int]"
"""A place in running code, its code object and the offset in it: the line is worked out when it is
asked for. A plain tuple, because one is made for each saved tensor. Where the user's code called a
library and that called torch, the place in the library may follow."""


_TORCH = folder_prefix(Path(torch.__file__).parent)
_USER, _LIBRARY, _MACHINERY = range(3)
"""Whose code a file holds; the lower, the sooner a line of it is named."""


class _Kinds(dict[str, int]):
    """Whose code a file holds, worked out when first asked for.

    By file, not by code object: the hash of a code object goes through all its constants.
    """

    def __missing__(self, file: str) -> int:
        kind = self[file] = _kind_of_file(file)
        return kind


kind_of_file = _Kinds()
"""Maps a file name to 0 for the user's own code, and to other numbers for any other."""


def is_user_code(code: CodeType) -> bool:
    """Return whether this code is the user's own: no library's, torch's or ours."""
    return kind_of_file[code.co_filename] == _USER


def is_of_library(code: CodeType) -> bool:
    """Return whether this code is that of an installed package other than torch and us."""
    return kind_of_file[code.co_filename] == _LIBRARY


def is_of_torch(code: CodeType) -> bool:
    """Return whether this code is torch's own."""
    return os.path.realpath(code.co_filename).startswith(_TORCH)


def call_site(start: FrameType | None = None) -> CallSite | None:
    """Return the innermost place in the user's code, or None where there is no Python caller.

    Where every frame belongs to libraries, as for a project that is run from site-packages, the
    nearest one that is neither torch nor Python's own stands in.

    Args:
        start: the frame to begin at; by default the caller's.
    """
    frame = sys._getframe(1) if start is None else start  # noqa: SLF001 - the only cheap way
    kinds = kind_of_file
    fallback: FrameType | None = None
    while frame is not None:
        code = frame.f_code
        kind = kinds[code.co_filename]
        if kind == _USER:
            return (code, frame.f_lasti)
        if kind == _LIBRARY and fallback is None:
            fallback = frame
        frame = frame.f_back  # type: ignore[assignment]  # None ends the loop
    return None if fallback is None else (fallback.f_code, fallback.f_lasti)


def exact_call_site(outside: Collection[CodeType] = ()) -> CallSite | None:
    """Return the innermost place in the user's code, and where a library it called has come to.

    A training loop inside a library is one line of the user's, however many backwards and steps it
    has: what compares places, to tell whether one call was made again, asks for this.

    Args:
        outside: functions in which the place is not to be, as those that construct an object.
    """
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - as above
    kinds = kind_of_file
    inner: FrameType | None = None
    while frame is not None:
        kind = kinds[frame.f_code.co_filename]
        if kind == _USER and frame.f_code not in outside:
            here = (frame.f_code, frame.f_lasti)
            return here if inner is None else (*here, inner.f_code, inner.f_lasti)
        if kind == _LIBRARY and inner is None:
            inner = frame
        frame = frame.f_back
    return None if inner is None else (inner.f_code, inner.f_lasti)


def innermost_site(traceback: TracebackType | None) -> CallSite | None:
    """Return the last place in the user's code that an exception came through.

    Where it came through none, the last in a library stands in, as for ``call_site``.
    """
    best: CallSite | None = None
    best_kind = _LIBRARY
    while traceback is not None:
        code = traceback.tb_frame.f_code
        kind = kind_of_file[code.co_filename]
        if kind <= best_kind:
            best, best_kind = (code, traceback.tb_lasti), kind
        traceback = traceback.tb_next
    return best


def user_frames() -> Iterator[FrameType]:
    """Yield the frames of this thread that are not torch's, Python's or ours, innermost first."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - as above
    while frame is not None:
        if kind_of_file[frame.f_code.co_filename] != _MACHINERY:
            yield frame
        frame = frame.f_back


def line_that_drops() -> CallSite | None:
    """Return the user's line that throws away what is being called, through what returns it as is.

    None where something is done with it. What a cell of a notebook ends in is not thrown away.
    """
    for frame in user_frames():
        following = _operation_after(frame.f_code, frame.f_lasti)
        if following == "POP_TOP" and is_user_code(frame.f_code):
            return frame.f_code, frame.f_lasti
        if following != "RETURN_VALUE":
            break
    return None


def _operation_after(code: CodeType, offset: int) -> str:
    """Return the name of the instruction that comes after the call at an offset."""
    later = (each.opname for each in dis.get_instructions(code) if each.offset > offset)
    return next((name for name in later if name != "CACHE"), "")


def user_sites() -> tuple[tuple[CallSite, ...], set[str]]:
    """Return the user's lines that are running, innermost first, and the files of all frames.

    Where a line has called a library, and that called the line before, the place in the library
    follows in its ``CallSite``.
    """
    frame = sys._getframe(1)  # noqa: SLF001 - as above
    sites: list[CallSite] = []
    files: set[str] = set()
    library: FrameType | None = None
    while frame is not None:
        code = frame.f_code
        files.add(code.co_filename)
        if is_user_code(code):
            here = (code, frame.f_lasti)
            through = () if library is None else (library.f_code, library.f_lasti)
            sites.append(cast("CallSite", (*here, *through)))
            library = None
        elif library is None and is_of_library(code):
            library = frame
        frame = frame.f_back  # type: ignore[assignment]  # None ends the loop
    return tuple(sites), files


def sites_up_to_library() -> tuple[CallSite, ...]:
    """Return the user's lines that are running, innermost first, up to what a library has called.

    Where all are libraries', there is none.
    """
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - as above
    kinds = kind_of_file
    sites: list[CallSite] = []
    while frame is not None and len(sites) < _MOST_SITES:
        code = frame.f_code
        kind = kinds[code.co_filename]
        if kind == _USER:
            sites.append((code, frame.f_lasti))
        elif kind == _LIBRARY and sites:
            break
        frame = frame.f_back
    return tuple(sites)


_MOST_SITES = 16
"""Lines that are taken down of one call. A bound on cost: a loss goes up through few functions."""


def called_by_the_user(start: FrameType) -> FrameType | None:
    """Return the frame of what the innermost line of the user's has called, from ``start`` on."""
    inner, frame = start, start.f_back
    while frame is not None:
        if kind_of_file[frame.f_code.co_filename] == _USER:
            return inner
        inner, frame = frame, frame.f_back
    return None


def innermost_frames(most: int) -> list[FrameType]:
    """Return so many frames of the user's own, the innermost first, and as many of libraries."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - as above
    kinds = kind_of_file
    own: list[FrameType] = []
    others: list[FrameType] = []
    missing = {_USER: most, _LIBRARY: most, _MACHINERY: 0}
    while frame is not None and missing[_USER]:
        kind = kinds[frame.f_code.co_filename]
        if missing[kind]:
            missing[kind] -= 1
            (others if kind else own).append(frame)
        frame = frame.f_back
    return [*own, *others]


_MOST_FILES = 32
"""Files that a name is looked for in. Chosen: parsing one takes some 10 ms, and a name that is in
more of them leads to no single line."""


def user_files_with(text: str) -> list[str]:
    """Return the files of the user's modules, loaded by now, that have these words in them.

    A name that is in more than ``_MOST_FILES`` of them is not looked for: none is returned.
    """
    files = dict.fromkeys(
        file
        for module in list(sys.modules.values())
        if isinstance(file := getattr(module, "__file__", None), str)
        and kind_of_file[file] == _USER
    )
    words = re.compile(rf"(?<!\w(?=\w)){re.escape(text)}(?!(?<=\w)\w)")
    found = [
        file
        for file in files
        if any(text in line and words.search(line) for line in linecache.getlines(file))
    ]
    return found if len(found) <= _MOST_FILES else []


def variables_of(frame: FrameType) -> dict[str, object]:
    """Return the variables of a running function without leaving references to them behind.

    Before Python 3.13, a frame keeps the dictionary that ``f_locals`` has filled, and with it
    every value, long after the function has let go of it. Here it is emptied again, unless the
    program has the same dictionary from ``locals()``.
    """
    filled = frame.f_locals
    variables = dict(filled)
    own = type(filled) is dict and filled is not frame.f_globals
    if own and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        held_by_the_frame_alone = sys.getrefcount(filled) <= _FRAME_VARIABLE_AND_ARGUMENT
        if held_by_the_frame_alone:
            filled.clear()
    return variables


_FRAME_VARIABLE_AND_ARGUMENT = 3
"""References to a frame's dictionary that only the frame keeps: its own, that of the variable here,
and that of the argument of ``sys.getrefcount``. One more is somebody else's."""


def location_of(place: CallSite | None) -> Location | None:
    """Return the source line of a call site."""
    if place is None:
        return None
    code, offset = place[:2]
    line = code.co_firstlineno
    for start, end, number in code.co_lines():
        if start <= offset < end and number is not None:
            line = number
            break
    name: str = getattr(code, "co_qualname", code.co_name)
    return Location(path=code.co_filename, line=line, function=None if name == "<module>" else name)


def _kind_of_file(name: str) -> int:
    # First, as torch may lie outside of site-packages, on PYTHONPATH.
    if os.path.realpath(name).startswith(_TORCH):
        return _MACHINERY
    owner = owner_of_file(name)
    if owner is Owner.USER:
        return _USER
    return _LIBRARY if owner is Owner.PACKAGE else _MACHINERY
