"""Write a graph to a file, in the format that its suffix asks for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gradcheck_suite.errors import UsageError
from gradcheck_suite.graph.render_json import graph_to_json
from gradcheck_suite.graph.render_text import graph_to_text

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from gradcheck_suite.graph.model import AutogradGraph

__all__ = ["SUFFIXES", "check_destination", "save_graph"]

_FILE_WIDTH = 100


def _whole_text(graph: AutogradGraph) -> str:
    return graph_to_text(graph, width=_FILE_WIDTH, limit=None)


_RENDERERS: dict[str, Callable[[AutogradGraph], str]] = {
    ".json": graph_to_json,
    ".txt": _whole_text,
}
SUFFIXES = tuple(_RENDERERS)


def save_graph(graph: AutogradGraph, path: str | os.PathLike[str]) -> None:
    """Write the whole graph to ``path``, replacing what is there.

    Raises:
        UsageError: the suffix is unknown, the folder does not exist, or writing fails.
    """
    destination = check_destination(path)
    text = _RENDERERS[destination.suffix.lower()](graph)
    try:
        destination.write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise UsageError(
            f"cannot write the graph to {destination}: {error.strerror or error}"
        ) from error


def check_destination(path: str | os.PathLike[str]) -> Path:
    """Return ``path`` if a graph can be saved under this name.

    Raises:
        UsageError: the suffix is unknown, or the folder does not exist.
    """
    destination = Path(path)
    supported = ", ".join(SUFFIXES)
    if destination.suffix.lower() not in _RENDERERS:
        seen = f"the suffix {destination.suffix!r}" if destination.suffix else "no suffix"
        raise UsageError(
            f"cannot tell in which format to save {str(path)!r}: expected one of the suffixes "
            f"{supported}, got {seen}"
        )
    if not destination.parent.is_dir():
        raise UsageError(
            f"cannot save the graph as {str(path)!r}: the folder {str(destination.parent)!r} does "
            "not exist; create it first"
        )
    return destination
