"""Find gradients with a graph of their own of which nothing but the number is used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import libcst as cst

from gradcheck_lint.model.flow import GradMode
from gradcheck_lint.model.syntax import (
    assigned_once,
    boolean,
    bound_names,
    children,
    dotted_name,
    keyword,
    last_word,
    walk,
)
from gradcheck_lint.rules.connectivity.graph_broken.terms import is_gradient

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gradcheck_lint.model.module import FunctionModel

__all__ = ["UnusedPenalty", "unused_penalties"]


class UnusedPenalty(NamedTuple):
    """What is given a name, and where ``create_graph`` makes the graph that is not used."""

    node: cst.BaseExpression
    name: str
    graph: cst.Call


def unused_penalties(function: FunctionModel) -> Iterator[UnusedPenalty]:
    """Yield the names of penalties, in a function that trains, which are only looked at.

    Whatever is made of a penalty counts for it; whatever else names one of these uses its graph.
    """
    made = list(_made(function))
    for name, value, graph in made:
        names = _made_of({name}, function)
        if names is not None and not any(_uses(node, names) for node in _statements(function)):
            yield UnusedPenalty(value, name, graph)


def _made(function: FunctionModel) -> Iterator[tuple[str, cst.BaseExpression, cst.Call]]:
    """Yield what a function gives one name, made of gradients with a graph, and that graph."""
    for node in function.scope.nodes_of(cst.Assign, cst.AnnAssign):
        target, value = assigned_once(node)
        if type(target) is cst.Name and value is not None:
            graph = _graph_in(value, function)
            if graph is not None:
                yield target.value, value, graph


def _graph_in(value: cst.BaseExpression, function: FunctionModel) -> cst.Call | None:
    """Return the ``autograd.grad(..., create_graph=True)`` that a value is computed with."""
    for node in walk(value):
        if type(node) is not cst.Call:
            continue
        if _creates_graph(node, function):
            return node
        call = function.call_at(node)
        if call is None or call.function is None or call.mode is GradMode.DISABLED:
            continue
        called = function.module.function(call.function)
        if "create_graph" not in call.function.words or not _only_computes(called):
            continue
        found = [each for each in call.function.nodes_of(cst.Call) if is_gradient(each, called)]
        if found and all(_creates_graph(each, called) for each in found):
            return found[0]
    return None


def _creates_graph(call: cst.Call, function: FunctionModel) -> bool:
    return boolean(keyword(call, "create_graph")) is True and is_gradient(call, function)


def _only_computes(function: FunctionModel) -> bool:
    """Return whether a function has its graph in what it returns, and in nothing else."""
    if "backward" in function.scope.words:
        return False
    targets = [target for target, _ in function.scope.assignments]
    return all("." not in name for target in targets for name in bound_names(target))


def _statements(function: FunctionModel) -> Sequence[cst.CSTNode]:
    return list(children(function.scope.node))


def _made_of(names: set[str], function: FunctionModel) -> set[str] | None:
    """Return the names of all that is made of these; None if one has other things as well."""
    pairs = function.scope.assignments
    found = set(names)
    grown = True
    while grown:
        grown = False
        for target, value in pairs:
            if type(target) is cst.Name and target.value not in found and _uses(value, found):
                found.add(target.value)
                grown = True
    for target, value in pairs:
        if type(target) is cst.Name and target.value in found:
            is_made_of_them = _uses(value, found) or _graph_in(value, function) is not None
            if not is_made_of_them or not _only_transforms(value, found, function):
                return None
    return found


def _only_transforms(value: cst.BaseExpression, names: set[str], function: FunctionModel) -> bool:
    """Return whether what is called on these, or with them, goes through no graph."""
    for node in walk(value):
        if type(node) is not cst.Call or not _uses(node, names):
            continue
        resolved = function.module.scopes.resolve_import(dotted_name(node.func) or "") or ""
        is_of_torch = resolved.startswith("torch.") and "autograd" not in resolved
        is_method = type(node.func) is cst.Attribute and _uses(node.func.value, names)
        if not is_of_torch and not is_method:
            return False
    return True


def _uses(node: cst.CSTNode, names: set[str]) -> bool:
    """Return whether a statement or expression does more with these than to read their numbers."""
    below: list[cst.CSTNode] = list(children(node))
    if type(node) is cst.Name:
        return node.value in names
    if type(node) is cst.Assign or type(node) is cst.AnnAssign:
        target, value = assigned_once(node)
        if type(target) is cst.Name:
            below = [value] if value is not None and target.value not in names else []
    elif type(node) is cst.Call:
        name = dotted_name(node.func)
        is_read = type(node.func) is cst.Attribute and last_word(name) in _READING
        below = [] if is_read or name in _PRINTING else [node.func, *node.args]
    elif type(node) is cst.FormattedStringExpression:
        below = []
    elif type(node) is cst.Arg or type(node) is cst.Attribute:
        below = [node.value]
    return any(_uses(each, names) for each in below)


_READING: Final = frozenset({"item", "detach", "tolist"})
_PRINTING: Final = frozenset({"print", "float"})
