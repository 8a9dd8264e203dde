"""Keep what a long benchmark has found so far, so that it can be stopped and taken up again."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["Kept"]


class Kept:
    """Results by key, one line of JSON for each in a file, written as they come.

    Args:
        path: the file; None keeps nothing beyond this process.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._known: dict[str, Any] = {}
        if path is not None and path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                key, result = json.loads(line)
                self._known[key] = result

    def get(self, key: str, make: Callable[[], Any]) -> Any:
        """Return the result that is kept under the key, or make and keep it."""
        if key not in self._known:
            self._known[key] = result = make()
            if self._path is not None:
                with self._path.open("a", encoding="utf-8") as lines:
                    lines.write(json.dumps([key, result]) + "\n")
        return self._known[key]
