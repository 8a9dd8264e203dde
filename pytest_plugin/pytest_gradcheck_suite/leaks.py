"""Count the autograd graphs that outlive a piece of code, and say who holds each.

Graphs are counted, not tensors: a hundred tensors of one forward are one graph, and a loss that
was detached is none.
"""

from __future__ import annotations

import ast
import gc
import linecache
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from gradcheck_suite import catalogue
from gradcheck_suite._torch_compat import (
    node_of,
    node_of_gradient,
    node_sequence_number,
    without_torch_function,
)
from gradcheck_suite.auditing.object_names.heap import Heap
from gradcheck_suite.auditing.object_names.referrers import RunningFrames, owner_of
from gradcheck_suite.auditing.source_analysis.container_growth import growth_of
from gradcheck_suite.findings import Finding, Location, Related, Report

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest

    from gradcheck_suite.auditing.object_names.referrers import Owner
    from pytest_gradcheck_suite.markers import LeakMarker

__all__ = ["GraphCensus", "KeptGraph", "leak_report"]

_MOST_NODES = 200_000
_MOST_LISTED = 5
_MOST_TENSORS = 8


@dataclass(frozen=True, slots=True)
class KeptGraph:
    """A graph that is alive though what made it has ended.

    Attributes:
        tensors: how many Python tensors keep it.
        nodes: how many operations it has.
        op: the operation that made one of these tensors; None for a leaf whose gradient has a
            graph.
        shape: the shape of that tensor.
        owner: by which name the program reaches that tensor, or None where none was found.
        site: the statement that puts it there, where the source shows a single one.
    """

    tensors: int
    nodes: int
    op: str | None
    shape: tuple[int, ...]
    owner: str | None = None
    site: Location | None = None


class GraphCensus:
    """Knows the graphs that were alive when it was made."""

    def __init__(self) -> None:
        gc.collect()
        # Not by weak references: those to a tensor that C++ alone holds are cleared while it lives.
        # An identity may come again, but not with the same number of the operation.
        self._before = {
            id(tensor): node_sequence_number(node) for tensor, node in _tensors_with_graphs()
        }

    def newcomers(self, *, near: str | None = None) -> tuple[KeptGraph, ...]:
        """Return the graphs that are alive now and were not then, the largest first.

        The owners of the first few alone are looked for, for two seconds at most: that goes through
        all objects.

        Args:
            near: a source file to look in for the line that keeps a graph, if that of the class
                which holds it does not show it.
        """
        gc.collect()
        found = [(t, node) for t, node in _tensors_with_graphs() if not self._was_alive(t, node)]
        groups = sorted(_by_graph(found), key=lambda group: -group[1])
        frames, heap = RunningFrames(), Heap()
        own = {id(thing) for thing in (found, *found, groups, *groups, *(g for g, _ in groups))}
        try:
            return tuple(
                _describe(
                    tensors, nodes, frames if index < _MOST_LISTED else None, heap, own, near=near
                )
                for index, (tensors, nodes) in enumerate(groups)
            )
        finally:
            frames.forget()
            heap.forget()

    def _was_alive(self, tensor: torch.Tensor, node: Any) -> bool:
        known = id(tensor) in self._before
        return known and self._before[id(tensor)] == node_sequence_number(node)


def leak_report(item: pytest.Item, marker: LeakMarker, kept: tuple[KeptGraph, ...]) -> Report:
    """Say which graphs outlived the body of a test, if they are more than it may keep."""
    findings = []
    if len(kept) > marker.limit:
        path, line, name = item.reportinfo()
        test = Location(path=str(path), line=(line or 0) + 1, function=name)
        # By statement; those without one are told by name alone.
        sites = {(g.site.path, g.site.line): g.site for g in kept if g.site is not None}
        first, *others = [*sites.values(), test]
        runs = "its body" if marker.steps == 1 else f"{marker.steps} runs of its body"
        held = "; ".join(_sentence(graph) for graph in kept[:_MOST_LISTED])
        more = f"; and {len(kept) - _MOST_LISTED} more" if len(kept) > _MOST_LISTED else ""
        findings.append(
            Finding.of(
                catalogue.GRAPH_KEPT,
                f"{_count(len(kept), 'autograd graph')} outlived {runs}, expected at most "
                f"{marker.limit}: {held}{more}",
                detector="audit",
                location=first,
                related=tuple(
                    Related(place, "kept by this test" if place is test else "kept here too")
                    for place in others
                ),
                hint="keep loss.item() or tensor.detach() instead of the tensor",
                evidence={
                    "graphs": len(kept),
                    "steps": marker.steps,
                    "limit": marker.limit,
                    "owners": [graph.owner for graph in kept[:_MOST_LISTED]],
                },
            )
        )
    return Report(tool="gradcheck-suite audit", findings=tuple(findings))


def _sentence(graph: KeptGraph) -> str:
    owner = graph.owner or "something without a name"
    size = "x".join(map(str, graph.shape)) or "scalar"
    what = f"a {size} gradient" if graph.op is None else f"a {size} tensor of {graph.op}"
    return f"{owner} holds {what} with {_count(graph.nodes, 'operation')}"


def _tensors_with_graphs() -> Iterator[tuple[torch.Tensor, Any]]:
    with without_torch_function():
        for thing in gc.get_objects():
            if not issubclass(type(thing), torch.Tensor):
                continue
            node = node_of(thing) or node_of_gradient(thing)
            if node is not None:
                yield thing, node


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

    for tensor, start in found:
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


def _describe(
    tensors: list[torch.Tensor],
    nodes: int,
    frames: RunningFrames | None,
    heap: Heap,
    own: set[int],
    *,
    near: str | None,
) -> KeptGraph:
    with without_torch_function():
        tensor, owner = tensors[0], None
        if frames is not None:
            for candidate in tensors[:_MOST_TENSORS]:
                owner = owner_of(candidate, frames, heap, skip=own | {id(tensors)})
                if owner is not None:
                    tensor = candidate
                    break
        node = tensor.grad_fn
        op = None if node is None else node.name().removesuffix("Backward0")
        # A leaf is where it should be; what keeps its gradient's graph is a backward somewhere.
        site = None if owner is None or node is None else _line_that_keeps(owner, near=near)
        return KeptGraph(
            len(tensors),
            nodes,
            op,
            tuple(tensor.shape),
            None if owner is None else _words(owner),
            site,
        )


_WORDS = {
    "attribute": "`{path}` of a {scope}",
    "cache": "the cache of {scope}()",
    "class": "`{path}`, shared by the class,",
    "closure": "`{path}` in the closure of {scope}()",
    "context": "`{path}`, a context variable,",
    "coroutine": "`{path}` in the coroutine {scope}()",
    "ctx": "`{path}` of {scope}",
    "default": "`{path}` in the defaults of {scope}()",
    "function": "`{scope}.{path}`",
    "generator": "`{path}` in the generator {scope}()",
    "global": "`{path}` of module {scope}",
    "thread-local": "`{path}` of a {scope} of this thread",
}


def _words(owner: Owner) -> str:
    words = _WORDS.get(owner.kind, "`{path}` in {scope}()")
    return words.format(path=owner.path or owner.name, scope=owner.scope)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _line_that_keeps(owner: Owner, *, near: str | None = None) -> Location | None:
    """Return the one statement that adds to what the owner names, or binds it to a value.

    Args:
        owner: by which name the program reaches the tensor.
        near: a file to look in for an attribute that the file of its class never sets.
    """
    named = owner.grows
    if named is None:
        return None
    files = [*named.files, near] if named.attribute and near else named.files
    for file in dict.fromkeys(files):
        site = growth_of(
            file, named.name, function=named.function, attribute=named.attribute
        ).site or _only_binding(file, named.name, attribute=named.attribute)
        if site is not None:
            return site
    return None


def _only_binding(file: str, name: str, *, attribute: bool) -> Location | None:
    """Return the statement that binds the name to something that may hold a graph, if it is one."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError, RecursionError):
        return None
    found = [
        (statement, function)
        for statement, function in _statements(tree, ())
        if _binds(statement, name, attribute=attribute)
    ]
    if len(found) != 1:
        return None
    ((statement, function),) = found
    return Location(
        path=file,
        line=statement.lineno,
        column=statement.col_offset + 1,
        end_line=statement.end_lineno,
        end_column=None if statement.end_col_offset is None else statement.end_col_offset + 1,
        function=function,
    )


def _statements(tree: ast.AST, scope: tuple[str, ...]) -> Iterator[tuple[ast.stmt, str | None]]:
    for child in ast.iter_child_nodes(tree):
        inner = scope
        if isinstance(child, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            inner = (*scope, child.name)
        if isinstance(child, ast.stmt):
            yield child, ".".join(scope) or None
        yield from _statements(child, inner)


def _binds(statement: ast.stmt, name: str, *, attribute: bool) -> bool:
    if isinstance(statement, ast.Assign):
        targets, value = statement.targets, statement.value
    elif isinstance(statement, (ast.AnnAssign, ast.AugAssign)) and statement.value is not None:
        targets, value = [statement.target], statement.value
    else:
        return False
    return not _is_empty(value) and any(
        node.attr == name
        if attribute and isinstance(node, ast.Attribute)
        else not attribute and isinstance(node, ast.Name) and node.id == name
        for target in targets
        for node in ast.walk(target)
        if isinstance(getattr(node, "ctx", None), ast.Store)
    )


def _is_empty(value: ast.expr) -> bool:
    """Return whether a value holds nothing yet: a constant, or a container without contents."""
    if isinstance(value, (ast.List, ast.Tuple, ast.Set)):
        return not value.elts
    if isinstance(value, ast.Dict):
        return not value.values
    return isinstance(value, ast.Constant)
