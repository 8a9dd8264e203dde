"""Fetch lines of source text for showing, from whatever lies at a path by now."""

from __future__ import annotations

import io
import linecache
import stat
import tokenize
from pathlib import Path
from typing import TYPE_CHECKING

from gradcheck_suite.reporting.paths import is_pseudo_path

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["SourceLines"]

# Source written by people is far smaller; larger files are data, or generated.
_MOST_BYTES = 4 * 1024 * 1024


class SourceLines:
    """Read each file once, and never fail: what cannot be shown has no lines.

    Lines are counted as Python counts them. Bytes that are not in the file's declared encoding
    become U+FFFD. Cells of a notebook and other text without a file are found if ``linecache``
    knows them.
    """

    def __init__(self) -> None:
        self._files: dict[str, Sequence[str]] = {}

    def of(self, path: str) -> Sequence[str]:
        """Return the lines of the file without line ends; none if it cannot be shown."""
        lines = self._files.get(path)
        if lines is None:
            lines = self._files[path] = _read(path)
        return lines

    def line(self, path: str, number: int) -> str | None:
        """Return line ``number``, counted from 1, or None."""
        lines = self.of(path)
        return lines[number - 1] if 1 <= number <= len(lines) else None


def _read(path: str) -> Sequence[str]:
    data = None if is_pseudo_path(path) else _bytes(path)
    if data is None:
        return _from_linecache(path)
    if not data or b"\0" in data:
        return ()
    return io.StringIO(_decode(data), newline=None).read().split("\n")


def _bytes(path: str) -> bytes | None:
    try:
        status = Path(path).stat()
        # A pipe or a device would block, or never end.
        if not stat.S_ISREG(status.st_mode) or status.st_size > _MOST_BYTES:
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
