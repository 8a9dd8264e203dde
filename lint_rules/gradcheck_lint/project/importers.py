"""Find which files of a project import from one of them."""

from __future__ import annotations

import os
import re
from functools import lru_cache
from typing import Final

from gradcheck_lint.discovery import EXCLUDED_DIRECTORIES
from gradcheck_lint.files import read_source
from gradcheck_lint.project.layout import forget

_IMPORT: Final = re.compile(rb"\n[ \t]*(?:from|import)[ \t]+([^\n#]+)")
"""An import with the line end before it, which is found faster than a line's beginning is."""
_WORD: Final = re.compile(rb"\w+")
_MOST_FILES: Final = 10_000
_MOST_FOLDERS: Final = 5_000
"""Of what is larger no callers are looked for: to read all of it would take many seconds, and where
no file marks a project its root may be the directory of a user."""


def importers_of(root: str, path: str) -> list[str]:
    """Return the files below ``root`` that may import the one at ``path``, the nearest first."""
    folder, file = os.path.split(os.path.realpath(path))
    stem = os.path.splitext(file)[0]  # noqa: PTH122 - str in
    word = os.path.basename(folder) if stem == "__init__" else stem  # noqa: PTH119 - str in
    found = [known for known in _index(root).get(word.encode(), ()) if known != path]
    return sorted(found, key=lambda known: (_distance(folder, known), known))


def forget_index() -> None:
    """Let go of what is known of projects, whose files may have changed."""
    _index.cache_clear()
    forget()


@lru_cache(maxsize=4)
def _index(root: str) -> dict[bytes, list[str]]:
    """Return the files of a project by the words on the lines of their imports."""
    found: dict[bytes, list[str]] = {}
    for path in _files(os.path.realpath(root)):
        try:
            source = read_source(path)
        except OSError:
            continue
        lines = _IMPORT.findall(b"\n" + source)
        for word in {word for line in lines for word in _WORD.findall(line)}:
            found.setdefault(word, []).append(path)
    return found


def _files(root: str) -> list[str]:
    found: list[str] = []
    for count, (folder, below, files) in enumerate(os.walk(root)):
        below[:] = sorted(
            name for name in below if name not in EXCLUDED_DIRECTORIES and name[:1] != "."
        )
        found += [os.path.join(folder, name) for name in files if name.endswith(".py")]  # noqa: PTH118
        if len(found) > _MOST_FILES or count > _MOST_FOLDERS:
            return []
    return sorted(found)


def _distance(folder: str, path: str) -> int:
    """Return how many folders lie between a folder and a file."""
    return os.path.relpath(path, folder).count(os.sep)
