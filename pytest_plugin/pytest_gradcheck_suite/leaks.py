"""Count the autograd graphs that outlive a piece of code, and say who holds each.

Graphs are counted, not tensors: a hundred tensors of one forward are one graph, and a loss that
was detached is none.
"""

from __future__ import annotations

import gc
import sys
import types
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from gradcheck_suite import catalogue
from gradcheck_suite._torch_compat import node_sequence_number, without_torch_function
from gradcheck_suite.findings import Finding, Location, Report

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest

    from pytest_gradcheck_suite.marks import LeakMark

__all__ = ["GraphCensus", "KeptGraph", "leak_report"]

_MOST_NODES = 200_000
_LEVELS = 8
_MOST_PER_LEVEL = 300
_MOST_TOLD = 5


@dataclass(frozen=True, slots=True)
class KeptGraph:
    """A graph that is alive though what made it has ended.

    Attributes:
        tensors: how many Python tensors keep it.
        nodes: how many operations it has.
        op: the operation that made the newest of these tensors.
        shape: the shape of that tensor.
        owner: by which name the program reaches that tensor, or None where none was found.
    """

    tensors: int
    nodes: int
    op: str
    shape: tuple[int, ...]
    owner: str | None


class GraphCensus:
    """Knows the graphs that were alive when it was made."""

    def __init__(self) -> None:
        gc.collect()
        self._before: dict[int, tuple[weakref.ref[torch.Tensor], int | None]] = {
            id(tensor): (weakref.ref(tensor), node_sequence_number(node))
            for tensor, node in _tensors_with_graphs()
        }

    def newcomers(self) -> tuple[KeptGraph, ...]:
        """Return the graphs that are alive now and were not then, newest first."""
        gc.collect()
        found = [(t, node) for t, node in _tensors_with_graphs() if not self._knew(t, node)]
        groups = _by_graph(found)
        return tuple(
            sorted(
                (_describe(group, nodes) for group, nodes in groups),
                key=lambda kept: (kept.owner is None, -kept.nodes),
            )
        )

    def _knew(self, tensor: torch.Tensor, node: Any) -> bool:
        reference, number = self._before.get(id(tensor), (None, None))
        return (
            reference is not None and reference() is tensor and number == node_sequence_number(node)
        )


def leak_report(item: pytest.Item, mark: LeakMark, kept: tuple[KeptGraph, ...]) -> Report:
    """Say which graphs outlived the body of a test, if they are more than it may keep."""
    findings = []
    if len(kept) > mark.limit:
        path, line, name = item.reportinfo()
        runs = "its body" if mark.steps == 1 else f"{mark.steps} runs of its body"
        held = "; ".join(_sentence(graph) for graph in kept[:_MOST_TOLD])
        more = f"; and {len(kept) - _MOST_TOLD} more" if len(kept) > _MOST_TOLD else ""
        findings.append(
            Finding.of(
                catalogue.GRAPH_KEPT,
                f"{_count(len(kept), 'autograd graph')} outlived {runs}, expected at most "
                f"{mark.limit}: {held}{more}",
                detector="audit",
                location=Location(path=str(path), line=(line or 0) + 1, function=name),
                hint="keep loss.item() or tensor.detach() instead of the tensor",
                evidence={
                    "graphs": len(kept),
                    "steps": mark.steps,
                    "limit": mark.limit,
                    "owners": [graph.owner for graph in kept[:_MOST_TOLD]],
                },
            )
        )
    return Report(tool="gradcheck-suite audit", findings=tuple(findings))


def _sentence(graph: KeptGraph) -> str:
    owner = graph.owner or "something without a name"
    size = "x".join(map(str, graph.shape)) or "scalar"
    return f"{owner} holds a {size} tensor of {graph.op} with {_count(graph.nodes, 'operation')}"


def _tensors_with_graphs() -> Iterator[tuple[torch.Tensor, Any]]:
    with without_torch_function():
        for thing in gc.get_objects():
            if not issubclass(type(thing), torch.Tensor):
                continue
            node = thing.grad_fn
            if node is not None:
                yield thing, node
            elif thing.requires_grad:
                gradient = thing.grad  # a gradient with a graph: backward(create_graph=True)
                if gradient is not None and gradient.grad_fn is not None:
                    yield gradient, gradient.grad_fn


def _by_graph(
    found: list[tuple[torch.Tensor, Any]],
) -> list[tuple[list[torch.Tensor], int]]:
    """Put tensors together whose graphs share an operation; leaves don't count."""
    group_of: dict[Any, int] = {}
    parents: list[int] = []
    members: list[list[torch.Tensor]] = []

    def root(index: int) -> int:
        while parents[index] != index:
            index = parents[index]
        return index

    seen_tensors: set[int] = set()
    for tensor, start in found:
        if id(tensor) in seen_tensors:
            continue
        seen_tensors.add(id(tensor))
        index = len(parents)
        parents.append(index)
        members.append([tensor])
        waiting = [start]
        while waiting and len(group_of) < _MOST_NODES:
            node = waiting.pop()
            if node in group_of:
                parents[root(group_of[node])] = root(index)
                continue
            group_of[node] = index
            waiting.extend(
                following
                for following, _ in node.next_functions
                if following is not None and following.next_functions
            )
    nodes: dict[int, int] = {}
    for index in group_of.values():
        nodes[root(index)] = nodes.get(root(index), 0) + 1
    joined: dict[int, list[torch.Tensor]] = {}
    for index, tensors in enumerate(members):
        joined.setdefault(root(index), []).extend(tensors)
    return [(tensors, nodes.get(index, 1)) for index, tensors in joined.items()]


def _describe(tensors: list[torch.Tensor], nodes: int) -> KeptGraph:
    with without_torch_function():
        tensor, owner = tensors[0], None
        for candidate in tensors:
            owner = _owner(candidate, ignored={id(tensors)})
            if owner is not None:
                tensor = candidate
                break
        node = tensor.grad_fn
        name = "a gradient" if node is None else node.name().removesuffix("Backward0")
        return KeptGraph(len(tensors), nodes, name, tuple(tensor.shape), owner)


def _owner(tensor: torch.Tensor, *, ignored: set[int]) -> str | None:
    """Climb from a tensor to the nearest thing that has a name."""
    frames: set[int] = set()
    frame: types.FrameType | None = sys._getframe()  # noqa: SLF001 - to leave ours out
    while frame is not None:
        frames.add(id(frame))
        frame = frame.f_back
    level: list[Any] = [tensor]
    seen = {id(tensor), *frames, *ignored}
    for depth in range(_LEVELS):
        following: list[Any] = []
        for thing in level:
            for referrer in gc.get_referrers(thing):
                if id(referrer) in seen or referrer is level or referrer is following:
                    continue
                if isinstance(referrer, types.FrameType) or _is_ours(referrer):
                    continue
                name = _name(referrer, thing)
                if name is not None:
                    return name if depth == 0 else f"{name} ({type(thing).__name__})"
                seen.add(id(referrer))
                following.append(referrer)
        level = following[:_MOST_PER_LEVEL]
    return None


def _name(referrer: Any, thing: object) -> str | None:
    if isinstance(referrer, types.CellType):
        return _closure(referrer)
    if type(referrer) is dict:
        key = next((k for k, value in referrer.items() if value is thing), None)
        module = sys.modules.get(str(referrer.get("__name__")))
        if module is not None and vars(module) is referrer:
            return f"{module.__name__}.{key}"
        for holder in gc.get_referrers(referrer):
            if getattr(holder, "__dict__", None) is referrer and not _is_ours(holder):
                return _attribute(holder, key)
        return None
    # From Python 3.11 on, an object may hold its attributes without a dictionary.
    if type(referrer).__module__ not in ("builtins", "collections", "types"):
        attributes = getattr(referrer, "__dict__", None)
        if isinstance(attributes, dict):
            key = next((k for k, value in attributes.items() if value is thing), None)
            if key is not None:
                return _attribute(referrer, key)
    return None


def _attribute(holder: object, key: object) -> str:
    if isinstance(holder, type):
        return f"{holder.__module__}.{holder.__qualname__}.{key}"
    if isinstance(holder, types.ModuleType):
        return f"{holder.__name__}.{key}"
    kind = type(holder)
    return f"attribute {key!r} of a {kind.__module__}.{kind.__qualname__}"


def _closure(cell: types.CellType) -> str | None:
    for cells in gc.get_referrers(cell):
        if not isinstance(cells, tuple):
            continue
        for function in gc.get_referrers(cells):
            if isinstance(function, types.FunctionType) and function.__closure__ is cells:
                for name, candidate in zip(function.__code__.co_freevars, cells, strict=True):
                    if candidate is cell:
                        return f"variable {name!r} in the closure of {function.__qualname__}"
    return None


def _is_ours(thing: object) -> bool:
    return str(type(thing).__module__).startswith(("gradcheck_suite.", "pytest_gradcheck_suite."))


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
