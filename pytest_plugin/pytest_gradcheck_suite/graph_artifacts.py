"""Trace graphs in a test, and save a page of each where the test fails."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from gradcheck_suite.errors import UsageError
from pytest_gradcheck_suite.options import settings_of
from pytest_gradcheck_suite.results import add_section
from pytest_gradcheck_suite.runtime import runtime

if TYPE_CHECKING:
    from pathlib import Path

    from gradcheck_suite.graph import AutogradGraph

__all__ = ["GraphTracer", "graph_tracer_of", "save_graphs"]

_TRACER = pytest.StashKey["GraphTracer"]()


class GraphTracer:
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


def graph_tracer_of(item: pytest.Item, folders: pytest.TempPathFactory) -> GraphTracer:
    """Return what traces the graphs of this test; ``folders`` makes the folder to save them in."""
    item.stash[_TRACER] = GraphTracer(folders)
    return item.stash[_TRACER]


def save_graphs(item: pytest.Item) -> None:
    """Save the graphs of a test that failed, and say where in a section of its report."""
    tracer = item.stash.get(_TRACER, None)
    if tracer is None or not tracer.graphs:
        return
    stem = re.sub(r"[^\w.-]+", "-", item.nodeid).strip("-")[-100:]
    try:
        folder = _folder(item, tracer.folders)
        lines = []
        for number, graph in enumerate(tracer.graphs, start=1):
            file = folder / f"{stem}-{number}.html"
            graph.save(file)
            lines.append(f"autograd graph {number}: {file}")
    except (OSError, UsageError) as error:
        lines = [f"the autograd graphs could not be saved: {error}"]
    add_section(item, "\n".join(lines))
    tracer.forget()


def _folder(item: pytest.Item, folders: pytest.TempPathFactory) -> Path:
    report = settings_of(item.config).report
    if report is None:
        return folders.mktemp("autograd_graph")
    report.parent.mkdir(parents=True, exist_ok=True)
    return report.parent
