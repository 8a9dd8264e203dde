"""The autograd graph as plain data: it holds no tensor and keeps no memory of torch alive."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

from gradcheck_suite.findings import Location, Report

if TYPE_CHECKING:
    import os

    from rich.console import Console, ConsoleOptions, RenderResult

    from gradcheck_suite.findings import Finding

__all__ = [
    "AutogradGraph",
    "Edge",
    "EdgeGradient",
    "Leaf",
    "ModuleCall",
    "Node",
    "NodeKind",
    "Root",
    "SavedTensor",
    "TensorType",
]

NodeKind: TypeAlias = Literal["op", "leaf", "custom function", "undefined"]


@dataclass(frozen=True, slots=True)
class TensorType:
    """Shape and dtype of a tensor: ``TensorType((64, 32), "float32")``."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class SavedTensor:
    """A tensor that the forward pass saved for backward.

    ``type`` is None where saved-tensor hooks (activation checkpointing, offloading) hold it in a
    form of their own; ``hooked`` is true then. ``storage_bytes`` is the size of the memory that
    it keeps alive, which is that of the whole storage for a view; None where it cannot be told.
    ``owner`` says who holds the same memory anyway: "parameter conv1.weight", "buffer
    bn1.running_mean", "leaf", or "#12" for a node that comes earlier in backward. ``bytes`` counts
    only what has no other owner, so that bytes add up. ``modified`` says that the tensor was
    overwritten since, so that torch refuses to use it.
    """

    name: str
    type: TensorType | None
    storage_bytes: int | None
    owner: str | None = None
    hooked: bool = False
    modified: bool = False

    @property
    def bytes(self) -> int:
        """Count the bytes that are alive only because this tensor was saved."""
        return 0 if self.owner is not None or self.storage_bytes is None else self.storage_bytes


@dataclass(frozen=True, slots=True)
class Leaf:
    """The tensor in whose ``.grad`` a path of backward ends.

    ``names`` are its names in the model, several if it is tied, none if it is not the model's.
    ``type`` is None where the shape is not made of plain numbers (nested tensors).
    """

    names: tuple[str, ...]
    type: TensorType | None
    is_parameter: bool

    @property
    def name(self) -> str:
        """Name the leaf, or say that it has no name: ``"unnamed"``."""
        return self.names[0] if self.names else "unnamed"


@dataclass(frozen=True, slots=True)
class Node:
    """A step of backward.

    ``id`` counts from 1 in the order in which backward runs the nodes on one thread. ``op`` is
    torch's name of it ("AddmmBackward0"). ``sequence_number`` rises in the order of the forward
    pass; None for leaves. ``outputs`` are the types of the forward op's outputs, hence those of
    the gradients that come in; an entry is None where torch does not say.
    ``inputs_without_gradient`` counts the forward inputs that no gradient is computed for.
    ``freed`` says that an earlier backward has released the saved tensors. ``saved_is_visible``
    is false where torch hides what was saved (in-place writes into a view) and nobody recorded it.
    ``location`` is where a custom Function is defined. ``call`` is the id of the innermost module
    call that made the node, and ``source`` the line that did: both are known only of a recorded
    forward. ``attributes`` are names and values of what the node keeps apart from tensors, where
    they were asked for.
    """

    id: int
    op: str
    kind: NodeKind
    sequence_number: int | None = None
    outputs: tuple[TensorType | None, ...] = ()
    saved: tuple[SavedTensor, ...] = ()
    leaf: Leaf | None = None
    location: Location | None = None
    inputs_without_gradient: int = 0
    freed: bool = False
    saved_is_visible: bool = True
    call: int | None = None
    source: Location | None = None
    attributes: tuple[tuple[str, str], ...] = ()

    @property
    def saved_bytes(self) -> int:
        """Count the bytes that are alive only because this node saved them."""
        return sum(saved.bytes for saved in self.saved)


@dataclass(frozen=True, slots=True)
class EdgeGradient:
    """What a recorded backward sent along an edge.

    ``norm`` is the Euclidean norm, ``zeros`` the number of elements that are exactly zero.
    Where ``non_finite`` is "nan" or "inf", ``norm`` is None: the gradient holds at least one of
    these. ``elements`` is 0 where backward ran but sent no gradient this way.
    """

    norm: float | None
    zeros: int
    elements: int
    non_finite: Literal["nan", "inf"] | None = None

    @property
    def is_missing(self) -> bool:
        """Return whether backward computed no gradient here, which torch takes for zeros."""
        return self.elements == 0 and self.norm is None

    @property
    def is_zero(self) -> bool:
        """Return whether every element is exactly zero."""
        return self.elements > 0 and self.zeros == self.elements


@dataclass(frozen=True, slots=True)
class Edge:
    """A way that the gradient takes, from ``source`` to ``target`` (node ids).

    ``input_index`` is the place among the forward inputs of ``source``, ``output_index`` the place
    among the forward outputs of ``target``. ``gradient`` is known of a recorded backward.
    """

    source: int
    target: int
    input_index: int
    output_index: int
    gradient: EdgeGradient | None = None


@dataclass(frozen=True, slots=True)
class ModuleCall:
    """One call of a module in a recorded forward.

    ``id`` counts from 1 in the order of the calls; ``number`` tells calls of the same module apart,
    from 1. ``path`` is the module's name in the model ("layers.0.linear1"), empty for the model
    itself. ``parent`` is the id of the call that this one happened in.
    """

    id: int
    path: str
    kind: str
    number: int = 1
    parent: int | None = None

    @property
    def label(self) -> str:
        """Name the call for people: the path, or the class where there is none."""
        name = self.path or self.kind
        return name if self.number == 1 else f"{name} (call {self.number})"


@dataclass(frozen=True, slots=True)
class Root:
    """A tensor that backward may start from: its path in what was given, its node, its type."""

    name: str
    node: int
    output_index: int
    type: TensorType | None


@dataclass(frozen=True, slots=True)
class AutogradGraph:
    """What backward will do from some tensors, told by :func:`gradcheck_suite.trace_graph`.

    ``nodes`` are in the order of their ids, ``edges`` in the order of their sources. ``ignored``
    names the given tensors that have no graph. ``report`` holds the findings. ``calls`` are the
    module calls of a recorded forward, in their order.
    """

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    roots: tuple[Root, ...]
    report: Report
    ignored: tuple[str, ...] = field(default=())
    calls: tuple[ModuleCall, ...] = field(default=())

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Return what is wrong with the graph."""
        return self.report.findings

    @property
    def leaves(self) -> tuple[Node, ...]:
        """Return the nodes that put a gradient into a tensor's ``.grad``."""
        return tuple(node for node in self.nodes if node.leaf is not None)

    @property
    def saved_bytes(self) -> int:
        """Count the bytes that only this graph keeps alive, each storage once."""
        return sum(node.saved_bytes for node in self.nodes)

    @property
    def saved_bytes_are_complete(self) -> bool:
        """Return whether ``saved_bytes`` counts everything, and not only what torch lets us see."""
        return all(
            node.saved_is_visible and all(saved.storage_bytes is not None for saved in node.saved)
            for node in self.nodes
        )

    @property
    def op_counts(self) -> tuple[tuple[str, int], ...]:
        """Count the nodes of each op, leaves left out: the most frequent first, then by name."""
        counts = Counter(node.op for node in self.nodes if node.leaf is None)
        return tuple(sorted(counts.items(), key=lambda item: (-item[1], item[0])))

    @property
    def state(self) -> str:
        """Say in a sentence whether backward has been here.

        A graph that saved nothing looks the same before and after backward.
        """
        freed = sum(node.freed for node in self.nodes)
        held = sum(bool(node.saved) and not node.freed for node in self.nodes)
        if not freed and not held:
            return "Nothing in this graph saved a tensor for backward."
        if not freed:
            return "Saved tensors are in place: backward can run."
        if not held:
            return (
                "A backward has already run and freed the saved tensors: to run it again, build "
                "the graph anew, or call the first backward with retain_graph=True."
            )
        return (
            f"A backward has already freed the saved tensors of {freed} of {freed + held} nodes: "
            "a backward that needs those will fail."
        )

    @property
    def memory_by_module(self) -> tuple[tuple[str, int], ...]:
        """Sum the saved bytes by the module that saved them: the largest first, then by name.

        A module's bytes are those of its own ops, without those of the modules within. What was
        saved outside modules, or not recorded, goes by the name "".
        """
        sums: Counter[str] = Counter()
        for node in self.nodes:
            if node.saved_bytes:
                sums[self.module_of(node) or ""] += node.saved_bytes
        return tuple(sorted(sums.items(), key=lambda item: (-item[1], item[0])))

    def module_of(self, node: Node) -> str | None:
        """Name the module whose forward made this node; None if it is not known."""
        if node.call is None:
            return None
        call = self.calls[node.call - 1]
        return call.path or call.kind

    def node(self, node_id: int) -> Node:
        """Return the node with this id.

        Raises:
            KeyError: there is no such node.
        """
        if not 1 <= node_id <= len(self.nodes):
            raise KeyError(f"no node #{node_id}; ids run from 1 to {len(self.nodes)}")
        return self.nodes[node_id - 1]

    def save(self, path: str | os.PathLike[str], *, depth: int | None = None) -> None:
        """Write the graph to a file, in the format that the suffix of its name asks for.

        ``.html`` is a page to explore it, ``.svg`` or ``.png`` a picture, ``.txt`` a tree, ``.dot``
        or ``.gv`` for Graphviz, ``.json`` for programs. A folder, or a name with ``tfevents`` in
        it, gets an event file for TensorBoard.

        Args:
            path: where to write.
            depth: how many levels of modules pictures and pages open; None chooses what stays
                readable, -1 opens everything.

        Raises:
            UsageError: the suffix is unknown, or the file cannot be written.
        """
        from gradcheck_suite.graph.save import save_graph  # noqa: PLC0415 - drawn on demand

        save_graph(self, path, depth=depth)

    def _repr_html_(self) -> str:
        """Draw the graph for a notebook."""
        from gradcheck_suite.graph.render.svg import graph_to_svg  # noqa: PLC0415 - drawn on demand

        picture = graph_to_svg(self).partition("?>")[2]
        return f'<div style="max-height:640px;overflow:auto">{picture}</div>'

    def _repr_mimebundle_(self, **_chosen: object) -> dict[str, str]:
        """Draw the graph for a notebook, and for one that shows text alone."""
        # The repr of a dataclass has every node in it.
        return {"text/plain": str(self), "text/html": self._repr_html_()}

    def __str__(self) -> str:
        from gradcheck_suite.graph.render.text import (  # noqa: PLC0415 - drawn on demand
            graph_to_text,
        )

        encoding = getattr(sys.stdout, "encoding", None)
        return graph_to_text(self, encoding=encoding).rstrip("\n")

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from gradcheck_suite.graph.render.text import (  # noqa: PLC0415 - drawn on demand
            graph_renderables,
        )

        yield from graph_renderables(self, width=options.max_width)
