"""Find the files to lint below the paths that were given."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

EXCLUDED_DIRECTORIES: Final = frozenset(
    {
        "__pycache__",
        "__pypackages__",
        "build",
        "dist",
        "env",
        "node_modules",
        "site-packages",
        "venv",
    }
)
"""Directories that are never entered, beside those whose names start with a dot."""

_SUFFIXES = (".py", ".pyi", ".ipynb")


@dataclass(frozen=True, slots=True)
class Found:
    """A file to lint, or (``error`` is then set) a directory that can't be read.

    ``explicit`` is True for what was named on the command line.
    """

    path: str
    explicit: bool = False
    error: str | None = None


class IsExcluded(Protocol):
    """Tell whether a file, or a directory with all that is in it, is left out."""

    def __call__(self, path: str, *, is_directory: bool) -> bool:
        """Answer for one path."""
        ...


def find_files(paths: Iterable[str], *, is_excluded: IsExcluded) -> Iterator[Found]:
    """Yield the files to lint, each once, directories in the order of names.

    A path that is named is read whatever its name and wherever it lies. Symbolic links that turn
    up below a directory are left alone: what they lead to inside the tree is found where it is,
    and what is outside was not asked for.
    """
    roots = list(paths)
    seen: set[str] = set()
    real_directories: dict[str, str] = {}
    for path in roots:
        found = _walk(path, is_excluded) if _is_directory(path) else [Found(path, explicit=True)]
        if len(roots) == 1:
            # No link is followed on the way, so nothing turns up twice.
            yield from found
            continue
        for item in found:
            key = _real_path(item, real_directories)
            if key not in seen:
                seen.add(key)
                yield item


def _real_path(found: Found, real_directories: dict[str, str]) -> str:
    if found.explicit:
        return os.path.realpath(found.path)
    directory, name = os.path.split(found.path)
    real = real_directories.get(directory)
    if real is None:
        real = real_directories[directory] = os.path.realpath(directory)
    return os.path.join(real, name)  # noqa: PTH118 - str in


def is_hidden(path: str) -> bool:
    """Tell whether walking from the working directory would not come to this path."""
    try:
        relative = os.path.relpath(path)
    except ValueError:  # another drive
        return False
    parts = Path(relative).parts
    directories = parts if _is_directory(path) else parts[:-1]
    return os.pardir not in parts[:1] and any(map(_is_skipped, directories))


def _is_skipped(name: str) -> bool:
    return name in EXCLUDED_DIRECTORIES or (name.startswith(".") and bool(name.strip(".")))


def _is_directory(path: str) -> bool:
    return os.path.isdir(path)  # noqa: PTH112 - paths stay as they were given


def _walk(directory: str, is_excluded: IsExcluded) -> Iterator[Found]:
    waiting = [directory]
    while waiting:
        current = waiting.pop()
        try:
            with os.scandir(current) as entries:
                ordered = sorted(entries, key=lambda entry: entry.name)
        except OSError as error:
            yield Found(current, error=error.strerror or str(error))
            continue
        below: list[str] = []
        for entry in ordered:
            if entry.is_symlink():
                continue
            path = os.path.join(current, entry.name)  # noqa: PTH118 - as the user spelt it
            if entry.is_dir(follow_symlinks=False):
                if not _is_skipped(entry.name) and not is_excluded(path, is_directory=True):
                    below.append(path)
            elif _is_source(entry) and not is_excluded(path, is_directory=False):
                yield Found(_tidy(path))
        waiting.extend(reversed(below))


def _is_source(entry: os.DirEntry[str]) -> bool:
    return entry.name.endswith(_SUFFIXES) and entry.is_file(follow_symlinks=False)


def _tidy(path: str) -> str:
    return path[2:] if path.startswith(f".{os.sep}") else path
