"""Whose code a frame runs: ours, Python's, an installed package's, or the user's."""

from __future__ import annotations

import functools
import inspect
import os
import site
import sysconfig
from enum import Enum
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import CodeType

__all__ = [
    "Owner",
    "code_of",
    "definition_line",
    "folder_prefix",
    "is_ours",
    "owner_of_file",
    "without_ours",
]


class Owner(Enum):
    """Whose a source file is."""

    US = "gradcheck-suite"
    PYTHON = "the standard library, frozen or generated code"
    PACKAGE = "an installed package"
    USER = "the user"


def folder_prefix(path: str | Path) -> str:
    """Return what the resolved names of all files in a folder start with."""
    return os.path.join(os.path.realpath(path), "")  # noqa: PTH118 - keeps the separator


def _folder_prefixes(paths: Iterable[str | None]) -> tuple[str, ...]:
    return tuple({folder_prefix(path) for path in paths if path})


def _own_folders() -> Iterator[str]:
    for package in ("gradcheck_suite", "gradcheck_lint", "pytest_gradcheck_suite"):
        found = find_spec(package)
        if found is not None and found.origin is not None:
            yield folder_prefix(Path(found.origin).parent)


_OURS = tuple(_own_folders())
# The examples ship with the package, but they stand for a user's project.
_EXAMPLES = folder_prefix(Path(__file__).parents[1] / "_examples")
_PACKAGES = _folder_prefixes(
    [
        sysconfig.get_path("purelib"),
        sysconfig.get_path("platlib"),
        *site.getsitepackages(),
        site.getusersitepackages(),
    ]
)
_STANDARD = _folder_prefixes([sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")])


@cache
def owner_of_file(name: str) -> Owner:
    """Return whose a file is, by the name that its code objects carry.

    Frozen modules and generated code (dataclasses, namedtuple) are Python's; a cell of a notebook
    or an exec of the user's is compiled under a name of its own.
    """
    if name.startswith("<"):
        generated = name.startswith(("<frozen", "<string>", "<eval"))
        return Owner.PYTHON if generated else Owner.USER
    path = os.path.realpath(name)
    if path.startswith(_EXAMPLES):
        return Owner.USER
    if path.startswith(_OURS):
        return Owner.US
    if path.startswith(_PACKAGES):
        return Owner.PACKAGE
    if path.startswith(_STANDARD):
        return Owner.PYTHON
    return Owner.USER


def code_of(function: object) -> CodeType | None:
    """Return the code that a call runs: of a function, a method, or an object that is called.

    Partials and decorators that name what they wrap are looked through; None for what is built in.
    """
    while isinstance(function, functools.partial):
        function = function.func
    written = getattr(function, "__func__", function)
    if callable(written):
        written = inspect.unwrap(written)
    code: CodeType | None = getattr(written, "__code__", None)
    if code is None and callable(function):
        code = getattr(type(function).__call__, "__code__", None)
    return code


def definition_line(code: CodeType) -> int:
    """Return the line of the ``def`` of a function.

    A code object begins at its decorators; a reader looks for the def.
    """
    try:
        source, start = inspect.getsourcelines(code)
    except (OSError, TypeError):
        return code.co_firstlineno
    for offset, text in enumerate(source):
        if text.lstrip().startswith(("def ", "async def ")):
            return start + offset
    return code.co_firstlineno


def is_ours(traceback: TracebackType) -> bool:
    """Return whether this entry of a traceback is a frame of gradcheck-suite."""
    return owner_of_file(traceback.tb_frame.f_code.co_filename) is Owner.US


def without_ours(traceback: TracebackType | None) -> TracebackType | None:
    """Return a traceback without the frames of gradcheck-suite."""
    entries = []
    while traceback is not None:
        entries.append(traceback)
        traceback = traceback.tb_next
    kept: TracebackType | None = None
    for entry in reversed(entries):
        if not is_ours(entry):
            kept = TracebackType(kept, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return kept
