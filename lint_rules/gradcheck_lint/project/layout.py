"""Know where a project begins, and which of its files an import means.

Nothing is imported or run: an import is a path below the root, or it is none of the project's.
"""

from __future__ import annotations

import os
import sys
from functools import lru_cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_MARKERS: Final = ("pyproject.toml", "setup.py", "setup.cfg", ".git")
_FOREIGN: Final = sys.stdlib_module_names | {"torch", "torchvision", "numpy"}
"""Packages that no project has itself, so that nothing has to be looked for."""
_SOURCE_FOLDERS: Final = ("", "src")


def root_of(path: str) -> str | None:
    """Return the nearest directory above a file that a project begins in, if there is one."""
    return _root_above(os.path.dirname(os.path.abspath(path)))  # noqa: PTH100, PTH120 - str in


def common_root(paths: Sequence[str]) -> str | None:
    """Return the directory that all paths are in."""
    folders = {
        whole if os.path.isdir(whole) else os.path.dirname(whole)  # noqa: PTH112, PTH120 - str in
        for whole in map(os.path.abspath, paths)
    }
    try:
        return os.path.commonpath(folders)
    except ValueError:  # no paths, or several drives
        return None


@lru_cache(maxsize=4096)
def _root_above(folder: str) -> str | None:
    if any(os.path.exists(f"{folder}{os.sep}{marker}") for marker in _MARKERS):  # noqa: PTH110
        return folder
    above = os.path.dirname(folder)  # noqa: PTH120 - str in
    return None if above == folder else _root_above(above)


@lru_cache(maxsize=16)
def layout_of(root: str) -> Layout:
    """Return the layout of a project; ``forget`` lets go of it."""
    return Layout(root)


def forget() -> None:
    """Let go of what is known of projects, whose files may have changed."""
    layout_of.cache_clear()
    _root_above.cache_clear()


class Layout:
    """Where the modules of one project are, each looked for once."""

    def __init__(self, root: str) -> None:
        self.root = os.path.realpath(root)
        self._known: dict[tuple[str, str, int], str | None] = {}

    def contains(self, path: str) -> bool:
        """Return whether a file lies below the root, links followed."""
        real = os.path.realpath(path)
        return real.startswith(os.path.join(self.root, ""))  # noqa: PTH118 - str in

    def module(self, importer: str, name: str, level: int = 0) -> str | None:
        """Return the file that ``name`` means in an import of ``importer``.

        ``level`` counts the dots before it. As when a script runs, the folder of the importer is
        looked into first; then those above it, up to the root.
        """
        if not level and name.partition(".")[0] in _FOREIGN:
            return None
        key = (os.path.dirname(importer), name, level)  # noqa: PTH120 - str in
        if key not in self._known:
            self._known[key] = self._look_for(importer, name, level)
        return self._known[key]

    def _look_for(self, importer: str, name: str, level: int) -> str | None:
        for folder in self._folders(importer, level):
            found = _module_in(folder, name)
            if found is not None:
                return found if self.contains(found) else None
        return None

    def places(self, importer: str, name: str, level: int = 0) -> Iterator[str]:
        """Yield where a module that is not there would most likely turn up."""
        if level or name.partition(".")[0] not in _FOREIGN:
            folder = next(self._folders(importer, level), None)
            place = os.path.join(folder or "", *name.split(".")) + ".py"  # noqa: PTH118 - str in
            if name and self.contains(place):
                yield place

    def _folders(self, importer: str, level: int) -> Iterator[str]:
        folder = os.path.dirname(os.path.realpath(importer))  # noqa: PTH120 - str in
        if level:
            for _ in range(level - 1):
                folder = os.path.dirname(folder)  # noqa: PTH120 - str in
            yield folder
            return
        while (folder + os.sep).startswith(os.path.join(self.root, "")):  # noqa: PTH118 - str in
            yield folder
            folder = os.path.dirname(folder)  # noqa: PTH120 - str in
        yield from (os.path.join(self.root, below) for below in _SOURCE_FOLDERS[1:])  # noqa: PTH118


def _module_in(folder: str, name: str) -> str | None:
    base = os.path.join(folder, *name.split(".")) if name else folder  # noqa: PTH118 - str in
    package = os.path.join(base, "__init__.py")  # noqa: PTH118 - str in
    if os.path.isfile(package):  # noqa: PTH113 - str in
        return package
    plain = f"{base}.py"
    return plain if name and os.path.isfile(plain) else None  # noqa: PTH113 - str in
