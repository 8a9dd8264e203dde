"""Write a graph to a file, in the format that its suffix asks for."""

from __future__ import annotations

import warnings
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from gradcheck_suite.errors import UsageError
from gradcheck_suite.graph.render.dot import graph_to_dot
from gradcheck_suite.graph.render.html import graph_to_html
from gradcheck_suite.graph.render.json import graph_to_json
from gradcheck_suite.graph.render.png import check_png, graph_to_png
from gradcheck_suite.graph.render.svg import graph_to_svg
from gradcheck_suite.graph.render.tensorboard import (
    EVENTS,
    check_tensorboard,
    other_graph,
    write_events,
)
from gradcheck_suite.graph.render.text import graph_to_text
from gradcheck_suite.graph.trace.walk import progress_if_large
from gradcheck_suite.reporting.text import plural

if TYPE_CHECKING:
    from collections.abc import Callable

    from gradcheck_suite.graph.model import AutogradGraph

__all__ = ["SUFFIXES", "check_destination", "check_path", "save_graph", "write_content"]

_FILE_WIDTH = 100


def _whole_text(graph: AutogradGraph, _depth: int | None) -> str:
    return graph_to_text(graph, width=_FILE_WIDTH, limit=None)


def _dot(graph: AutogradGraph, _depth: int | None) -> str:
    return graph_to_dot(graph)


def _json(graph: AutogradGraph, _depth: int | None) -> str:
    return graph_to_json(graph)


def _html(graph: AutogradGraph, depth: int | None) -> str:
    return graph_to_html(graph, depth=depth)


def _svg(graph: AutogradGraph, depth: int | None) -> str:
    return graph_to_svg(graph, depth=depth)


def _png(graph: AutogradGraph, depth: int | None) -> bytes:
    return graph_to_png(graph, depth=depth)


_RENDERERS: dict[str, Callable[[AutogradGraph, int | None], str | bytes]] = {
    ".dot": _dot,
    ".gv": _dot,
    ".html": _html,
    ".json": _json,
    ".png": _png,
    ".svg": _svg,
    ".txt": _whole_text,
}
SUFFIXES = tuple(_RENDERERS)


def save_graph(
    graph: AutogradGraph, path: str | PathLike[str], *, depth: int | None = None
) -> Path:
    """Write the whole graph to ``path``, replacing what is there, and return where it is.

    Warns if TensorBoard will show this graph in the place of one that is there already.

    Raises:
        UsageError: the suffix is unknown, the folder does not exist, or writing fails.
    """
    check_depth(depth)
    destination = check_destination(path)
    nodes = plural(len(graph.nodes), "node")
    with progress_if_large(len(graph.nodes), f"Writing {nodes} to {destination.name}"):
        if _is_for_tensorboard(destination):
            other = other_graph(destination)
            try:
                written = write_events(graph, destination)
            except OSError as error:
                raise _unwritable(destination, error) from error
            if other is not None:
                _warn_of(other)
            return written
        return write_content(destination, _RENDERERS[destination.suffix.lower()](graph, depth))


def write_content(destination: Path, content: str | bytes) -> Path:
    """Write a file, replacing what is there.

    Raises:
        UsageError: writing fails.
    """
    if isinstance(content, str):
        # Half a surrogate pair in a name has no bytes: it is spelled out.
        content = content.encode(errors="backslashreplace")
    try:
        destination.write_bytes(content)
    except OSError as error:
        raise _unwritable(destination, error) from error
    return destination


def _warn_of(other: Path) -> None:
    folder = other.parent
    warnings.warn(
        f"{str(folder)!r} held a graph already, in {other.name}, and TensorBoard shows only the "
        "newest graph of a folder; to see both, save each to a folder of its own, such as "
        f"{str(folder / 'autograd')!r}",
        stacklevel=4,
    )


def _unwritable(destination: Path, error: OSError) -> UsageError:
    return UsageError(f"cannot write the graph to {destination}: {error.strerror or error}")


def _is_for_tensorboard(destination: Path) -> bool:
    is_folder = _is_folder(destination) and destination.suffix.lower() not in SUFFIXES
    return is_folder or EVENTS in destination.name


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # a name that is too long for the file system
        return False


def _refuse_no_name(path: object) -> None:
    if not isinstance(path, (str, PathLike)) or not str(path) or "\0" in str(path):
        raise UsageError(
            f"expected the name of a file to save to, such as 'graph.html', got {path!r}"
        )


def check_depth(depth: object) -> None:
    """Refuse what is no number of levels.

    Raises:
        UsageError: ``depth`` is neither None nor a whole number from -1 on.
    """
    if depth is None or (isinstance(depth, int) and not isinstance(depth, bool) and depth >= -1):
        return
    raise UsageError(
        f"depth= expected a number of levels of modules to open, -1 for all, got {depth!r}"
    )


def check_destination(path: str | PathLike[str]) -> Path:
    """Return ``path`` if a graph can be saved under this name, with what is installed here.

    Raises:
        UsageError: the suffix is unknown, the folder does not exist, or what the format needs is
            not there.
    """
    destination = check_path(path, suffixes=SUFFIXES, events=True)
    if _is_for_tensorboard(destination):
        check_tensorboard()
    elif destination.suffix.lower() == ".png":
        check_png()
    return destination


def check_path(path: str | PathLike[str], *, suffixes: tuple[str, ...], events: bool) -> Path:
    """Return ``path`` if its name says the format, and its folder is there.

    Args:
        path: where something is to go.
        suffixes: those that are known.
        events: whether folders and event files are known as well.

    Raises:
        UsageError: the suffix is unknown, or the folder does not exist.
    """
    _refuse_no_name(path)
    destination = Path(path)
    to_tensorboard = events and _is_for_tensorboard(destination)
    if not to_tensorboard and destination.suffix.lower() not in suffixes:
        supported = ", ".join(suffixes)
        seen = f"the suffix {destination.suffix!r}" if destination.suffix else "no suffix"
        also = ", or an existing folder for TensorBoard" if events else ""
        raise UsageError(
            f"cannot tell in which format to save {str(path)!r}: expected one of the suffixes "
            f"{supported}{also}, got {seen}"
        )
    if not _is_folder(destination.parent):
        raise UsageError(
            f"cannot save the graph as {str(path)!r}: the folder {str(destination.parent)!r} does "
            "not exist; create it first"
        )
    return destination
