"""``make_dot`` as torchviz has it, for notebooks that call it; no Graphviz needed.

>>> import torch
>>> from gradcheck_suite.graph import make_dot
>>> weight = torch.ones(3, requires_grad=True)
>>> dot = make_dot((weight * 2).sum(), params={"weight": weight})
>>> dot.source.splitlines()[0]
'digraph autograd {'
"""

from __future__ import annotations

import shutil
import subprocess
import webbrowser
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import torch

from gradcheck_suite.errors import UsageError
from gradcheck_suite.graph.layout.labels import short_type
from gradcheck_suite.graph.model import AutogradGraph
from gradcheck_suite.graph.render.dot import graph_to_dot
from gradcheck_suite.graph.render.svg import graph_to_svg
from gradcheck_suite.graph.save import SUFFIXES, check_path, save_graph
from gradcheck_suite.graph.tracing import trace_named
from gradcheck_suite.reporting.text import visible

if TYPE_CHECKING:
    import os

    from gradcheck_suite.graph.model import Node

__all__ = ["Dot", "make_dot"]

_DRAWN_BY_GRAPHVIZ = ("pdf", "png", "jpg", "jpeg", "gif", "ps", "eps")


def make_dot(
    var: object,
    params: Mapping[str, torch.Tensor] | None = None,
    show_attrs: bool = False,
    show_saved: bool = False,
    max_attr_chars: int = 50,
) -> Dot:
    """Draw the graph behind a tensor, or several, with the call that torchviz has.

    Args:
        var: a tensor, or anything that ``trace_graph`` takes.
        params: names of tensors, as from ``dict(model.named_parameters())``.
        show_attrs: add what ops keep apart from tensors: dimensions, sizes, flags.
        show_saved: add the tensors that ops saved.
        max_attr_chars: cut longer values.

    Raises:
        UsageError: ``var`` has no graph, ``params`` is no mapping of tensors, or
            ``max_attr_chars`` is too small.
    """
    if not _names_tensors(params):
        raise UsageError(
            f"params= expected a dict of names and tensors, got {type(params).__name__}; "
            "pass dict(model.named_parameters())"
        )
    if max_attr_chars < 3:  # noqa: PLR2004 - torchviz' least
        raise UsageError(f"max_attr_chars expected at least 3, got {max_attr_chars}")
    members = [("parameter", str(name), tensor) for name, tensor in (params or {}).items()]
    graph = trace_named(var, members, with_attributes=show_attrs)
    nodes = tuple(
        _with_details(node, show_saved=show_saved, longest=max_attr_chars) for node in graph.nodes
    )
    return Dot(replace(graph, nodes=nodes))


def _names_tensors(params: object) -> bool:
    return params is None or (
        isinstance(params, Mapping) and all(isinstance(p, torch.Tensor) for p in params.values())
    )


def _with_details(node: Node, *, show_saved: bool, longest: int) -> Node:
    details = [
        (name, value if len(value) <= longest else value[: longest - 3] + "...")
        for name, value in node.attributes
    ]
    if show_saved:
        details += [(saved.name, f"saved {short_type(saved.type)}") for saved in node.saved]
    return replace(node, attributes=tuple((visible(name), visible(v)) for name, v in details))


@dataclass(slots=True)
class Dot:
    """What ``make_dot`` returns: the part of ``graphviz.Digraph`` that people use.

    ``format`` is what ``render`` writes when it is not told: "svg", not "pdf".
    """

    graph: AutogradGraph
    format: str = "svg"

    @property
    def source(self) -> str:
        """Return the graph in the DOT language."""
        return graph_to_dot(self.graph)

    def render(
        self,
        filename: str | os.PathLike[str] | None = None,
        directory: str | os.PathLike[str] | None = None,
        view: bool = False,
        cleanup: bool = True,  # noqa: ARG002 - nothing is left to clean up
        format: str | None = None,  # noqa: A002 - graphviz' name for it
    ) -> str:
        """Write the picture to ``filename`` plus the format's suffix, and return the path.

        Formats svg, html, dot, gv, json and txt need nothing; png needs the resvg-py package or
        Graphviz' ``dot``, and pdf needs ``dot``.

        Raises:
            UsageError: the format is unknown, or needs a ``dot`` that is not there, or the file
                cannot be written.
        """
        chosen = (format or self.format).lower().lstrip(".")
        folder = Path(directory) if directory is not None else Path()
        path = folder / f"{filename if filename is not None else 'autograd'}.{chosen}"
        if chosen in _DRAWN_BY_GRAPHVIZ and not (chosen == "png" and find_spec("resvg_py")):
            check_path(path, suffixes=(path.suffix,), events=False)
            self._draw_by_graphviz(path, chosen)
        else:
            check_path(path, suffixes=SUFFIXES, events=False)
            save_graph(self.graph, path)
        if view:
            webbrowser.open(path.resolve().as_uri())
        return str(path)

    def _draw_by_graphviz(self, path: Path, chosen: str) -> None:
        dot = shutil.which("dot")
        if dot is None:
            also = ", or pip install 'gradcheck-suite[png]'" if chosen == "png" else ""
            raise UsageError(
                f"the format {chosen!r} needs Graphviz' dot command, which is not installed here: "
                f"install it{also}, or use format='svg' or format='html', which need nothing"
            )
        done = subprocess.run(
            [dot, f"-T{chosen}", "-o", str(path)],
            input=self.source.encode(),
            capture_output=True,
            check=False,
        )
        if done.returncode:
            raise UsageError(
                f"dot could not write {path}: {done.stderr.decode(errors='replace').strip()}"
            )

    def save(
        self,
        filename: str | os.PathLike[str] = "autograd.gv",
        directory: str | os.PathLike[str] | None = None,
    ) -> str:
        """Write the DOT source to a file, and return its path.

        Raises:
            UsageError: the file cannot be written.
        """
        path = Path(directory or "") / filename
        if path.suffix not in {".dot", ".gv"}:
            path = path.with_name(f"{path.name}.gv")
        save_graph(self.graph, path)
        return str(path)

    def pipe(self, format: str | None = None) -> bytes:  # noqa: A002 - graphviz' name for it
        """Return the picture as bytes: ``IPython.display.Image(dot.pipe("png"))``.

        Raises:
            UsageError: the format is unknown, or needs a ``dot`` that is not there.
        """
        with TemporaryDirectory() as folder:
            return Path(self.render("autograd", folder, format=format)).read_bytes()

    def view(
        self,
        filename: str | os.PathLike[str] | None = None,
        directory: str | os.PathLike[str] | None = None,
        cleanup: bool = True,
    ) -> str:
        """Write the picture and open it in the browser."""
        return self.render(filename, directory, True, cleanup)

    def _repr_svg_(self) -> str:
        """Draw the graph for a notebook."""
        return graph_to_svg(self.graph)

    def __str__(self) -> str:
        return self.source
