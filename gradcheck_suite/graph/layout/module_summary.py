"""Sum a graph up by module: ops, bytes saved, and the size of the parameters' gradients."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gradcheck_suite.graph.model import AutogradGraph, EdgeGradient

__all__ = ["ModuleRow", "module_rows"]

_DEEPEST = 3


@dataclass(slots=True)
class ModuleRow:
    """What lies within a module: its nodes, their bytes, its parameters and their gradients.

    ``norm`` is the Euclidean norm of the gradients that a recorded backward sent to the
    parameters, None if none was recorded. Of a parameter that several ops use only each op's share
    was seen: ``is_bound`` says that ``norm`` is then what their sum can be at most.
    ``non_finite`` is "nan" or "inf" if a gradient holds one.
    """

    name: str
    ops: int = 0
    saved_bytes: int = 0
    parameters: int = 0
    norm: float | None = None
    is_bound: bool = False
    non_finite: str | None = None
    _squares: list[float] = field(default_factory=list)

    def add(self, gradients: list[EdgeGradient]) -> None:
        """Add what was sent to one parameter."""
        for gradient in gradients:
            self.non_finite = self.non_finite or gradient.non_finite
        self.is_bound |= len(gradients) > 1
        self._squares.append(sum(gradient.norm or 0.0 for gradient in gradients) ** 2)
        self.norm = math.sqrt(math.fsum(self._squares))


def module_rows(graph: AutogradGraph, *, rows: int) -> tuple[ModuleRow, ...]:
    """Return one row for each module, in the order in which forward called them.

    Modules within modules have rows of their own down to the level at which there are no more
    than ``rows``. What the outermost module does itself goes by the name of its class; nodes and
    leaves outside modules have the row "".
    """
    if not graph.calls:
        return ()
    for depth in range(_DEEPEST, 1, -1):
        found = _rows(graph, depth)
        if len(found) <= rows:
            return found
    return _rows(graph, 1)


def _rows(graph: AutogradGraph, depth: int) -> tuple[ModuleRow, ...]:
    by_name: dict[str, ModuleRow] = {}
    for call in graph.calls:
        name = _cut(call.path, depth) or call.kind
        by_name.setdefault(name, ModuleRow(name))
    outermost = next((call.kind for call in graph.calls if not call.path), "")
    outside = ModuleRow("")
    sent: dict[int, list[EdgeGradient]] = defaultdict(list)
    for edge in graph.edges:
        if edge.gradient is not None and not edge.gradient.is_missing:
            sent[edge.target].append(edge.gradient)
    for node in graph.nodes:
        if node.leaf is None:
            row = by_name.get(_cut(graph.module_of(node) or "", depth), outside)
            row.ops += 1
            row.saved_bytes += node.saved_bytes
            continue
        scope = _cut(node.leaf.name.rpartition(".")[0], depth) if node.leaf.names else ""
        row = by_name.get(scope or (outermost if node.leaf.names else ""), outside)
        row.parameters += 1
        if sent.get(node.id):
            row.add(sent[node.id])
    used = [row for row in by_name.values() if row.ops or row.parameters]
    return (*used, outside) if outside.ops or outside.parameters else tuple(used)


def _cut(path: str, depth: int) -> str:
    return ".".join(path.split(".")[:depth])
