"""Pictures of autograd graphs, saved where a test fails."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from gradcheck_suite.errors import UsageError
from pytest_gradcheck_suite.outcomes import add_section
from pytest_gradcheck_suite.runtime import runtime
from pytest_gradcheck_suite.settings import settings_of

if TYPE_CHECKING:
    from pathlib import Path

    from gradcheck_suite.graph import AutogradGraph

__all__ = ["GraphPictures", "pictures_of", "save_pictures"]

_PICTURES = pytest.StashKey["GraphPictures"]()


class GraphPictures:
    """Traces graphs in one test and saves a page of each if the test fails."""

    def __init__(self, folders: pytest.TempPathFactory) -> None:
        self.folders = folders
        self.graphs: list[AutogradGraph] = []

    def __call__(self, tensors: Any, model: Any = None, **arguments: Any) -> AutogradGraph:
        """Trace the graph of ``tensors``; takes the arguments of ``gs.trace_graph``."""
        __tracebackhide__ = True
        try:
            graph: AutogradGraph = runtime().trace_graph(tensors, model, **arguments)
        except UsageError as error:
            raise error.with_traceback(None) from None
        self.graphs.append(graph)
        return graph

    def forget(self) -> None:
        """Forget the graphs: the test is over."""
        self.graphs = []


def pictures_of(item: pytest.Item, folders: pytest.TempPathFactory) -> GraphPictures:
    """Return what traces the graphs of this test; ``folders`` makes the folder to save them in."""
    item.stash[_PICTURES] = GraphPictures(folders)
    return item.stash[_PICTURES]


def save_pictures(item: pytest.Item) -> None:
    """Save the graphs of a test that failed, and say where in a section of its report."""
    pictures = item.stash.get(_PICTURES, None)
    if pictures is None or not pictures.graphs:
        return
    stem = re.sub(r"[^\w.-]+", "-", item.nodeid).strip("-")[-100:]
    try:
        folder = _folder(item, pictures.folders)
        lines = []
        for number, graph in enumerate(pictures.graphs, start=1):
            file = folder / f"{stem}-{number}.html"
            graph.save(file)
            lines.append(f"autograd graph {number}: {file}")
    except (OSError, UsageError) as error:
        lines = [f"the autograd graphs could not be saved: {error}"]
    add_section(item, "\n".join(lines))
    pictures.forget()


def _folder(item: pytest.Item, folders: pytest.TempPathFactory) -> Path:
    report = settings_of(item.config).report
    if report is None:
        return folders.mktemp("autograd_graph")
    report.parent.mkdir(parents=True, exist_ok=True)
    return report.parent
