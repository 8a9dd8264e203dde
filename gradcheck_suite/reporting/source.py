"""Fetch lines of source text for showing, from whatever lies at a path by now."""

from __future__ import annotations

import io
import linecache
import stat
import tokenize
from pathlib import Path
from typing import TYPE_CHECKING

from gradcheck_suite.findings import Location
from gradcheck_suite.reporting.notebooks import Notebook, read_notebook
from gradcheck_suite.reporting.paths import is_pseudo_path

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["SourceLines"]

# Source written by people is far smaller; larger files are data, or generated.
_MOST_BYTES = 4 * 1024 * 1024
# Notebooks hold their pictures.
_MOST_BYTES_OF_A_NOTEBOOK = 64 * 1024 * 1024


class SourceLines:
    """Read each file once, and never fail: what cannot be shown has no lines.

    A place in a cell of a notebook has the lines of that cell.

    Lines are counted as Python counts them. Bytes that are not in the file's declared encoding
    become U+FFFD. Cells of a notebook and other text without a file are found if ``linecache``
    knows them.
    """

    def __init__(self) -> None:
        self._files: dict[str, Sequence[str]] = {}
        self._notebooks: dict[str, Notebook] = {}

    def of(self, path: str) -> Sequence[str]:
        """Return the lines of the file without line ends; none if it cannot be shown."""
        lines = self._files.get(path)
        if lines is None:
            lines = self._files[path] = _read(path)
        return lines

    def lines_of(self, place: Location) -> Sequence[str]:
        """Return the lines that a place counts in: those of its cell, or of its file."""
        if place.cell is None:
            return self.of(place.path)
        cell = self._notebook(place.path).cell(place.cell)
        return () if cell is None else cell.lines

    def line_at(self, place: Location) -> str | None:
        """Return the line of a place, or None."""
        lines = self.lines_of(place)
        return lines[place.line - 1] if 1 <= place.line <= len(lines) else None

    def in_file(self, place: Location) -> Location:
        """Return a place for readers that know no cells: on its lines of the notebook file."""
        if place.cell is None:
            return place
        cell = self._notebook(place.path).cell(place.cell)
        line = 1 if cell is None else cell.file_line(place.line)
        end = None
        if cell is not None and place.end_line is not None:
            end = cell.file_line(place.end_line)
        return Location(place.path, line, end_line=end, function=place.function)

    def _notebook(self, path: str) -> Notebook:
        notebook = self._notebooks.get(path)
        if notebook is None:
            notebook = self._notebooks[path] = _read_notebook(path)
        return notebook


def _read(path: str) -> Sequence[str]:
    data = None if is_pseudo_path(path) else _bytes(path)
    if data is None:
        return _from_linecache(path)
    if not data or b"\0" in data:
        return ()
    return io.StringIO(_decode(data), newline=None).read().split("\n")


def _read_notebook(path: str) -> Notebook:
    data = _bytes(path, most=_MOST_BYTES_OF_A_NOTEBOOK) or b""
    try:
        return read_notebook(data.decode())
    except ValueError:
        return Notebook((), language=None)


def _bytes(path: str, *, most: int = _MOST_BYTES) -> bytes | None:
    try:
        status = Path(path).stat()
        # A pipe or a device would block, or never end.
        if not stat.S_ISREG(status.st_mode) or status.st_size > most:
            return b""
        return Path(path).read_bytes()
    except (OSError, ValueError):
        return None


def _decode(data: bytes) -> str:
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
    except SyntaxError:
        encoding = "utf-8-sig"
    return data.decode(encoding, "replace")


def _from_linecache(path: str) -> Sequence[str]:
    # For a path that it does not know, linecache would take a namesake anywhere on sys.path.
    if not is_pseudo_path(path) and path not in linecache.cache:
        return ()
    try:
        lines = linecache.getlines(path)
    except (OSError, ValueError, SyntaxError, MemoryError):
        return ()
    return [line.rstrip("\r\n") for line in lines]
