"""Find inner updates that keep their graph, and whose numbers alone are copied into a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import libcst as cst

from gradcheck_lint.model.flow import Forward
from gradcheck_lint.model.syntax import (
    assigned_pairs,
    boolean,
    bound_names,
    dotted_name,
    first_word,
    keyword,
    last_word,
    walk,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel

__all__ = ["copied_updates"]


def copied_updates(function: FunctionModel) -> Iterator[tuple[cst.CSTNode, cst.CSTNode]]:
    """Yield where updated weights are copied into a model that is run, and the derivative.

    The weights are made of gradients that ``create_graph`` lets be differentiated again.
    """
    if "create_graph" not in function.scope.words:
        return
    order = {id(node): place for place, node in enumerate(function.scope.nodes)}
    for derivative, names in _derivatives(function):
        updated = _made_of(names, function) - names
        for node in function.scope.nodes:
            model = _copied_into(node, updated)
            if model is None or order[id(node)] < order[id(derivative)]:
                continue
            if any(
                isinstance(event, Forward)
                and event.receiver == model
                and order.get(id(event.node), 0) > order[id(node)]
                for event in function.events()
            ):
                yield node, derivative


def _derivatives(function: FunctionModel) -> Iterator[tuple[cst.CSTNode, set[str]]]:
    """Yield each ``autograd.grad`` whose result has a graph, and the names of that."""
    for target, value in function.scope.assignments:
        called = dotted_name(value.func) if type(value) is cst.Call else None
        resolved = function.module.scopes.resolve_import(called or "")
        if type(value) is cst.Call and resolved == "torch.autograd.grad":
            asked = keyword(value, "create_graph")
            if asked is not None and boolean(asked) is not False:
                yield value, set(bound_names(target))


def _made_of(names: set[str], function: FunctionModel) -> set[str]:
    """Return the names that others flow into, and the containers that these are put into."""
    known = set(names)
    while True:
        before = len(known)
        for node in function.scope.nodes:
            if isinstance(node, (cst.For, cst.CompFor)) and _mentions(node.iter, known):
                known |= set(bound_names(node.target))
            for target, value in assigned_pairs(node):
                if _mentions(value, known):
                    place = target
                    while type(place) is cst.Subscript:
                        place = place.value
                    known |= {first_word(dotted_name(place)), *bound_names(target)} - {""}
        if len(known) == before:
            return known


def _mentions(node: cst.CSTNode, names: set[str]) -> bool:
    return any(type(each) is cst.Name and each.value in names for each in walk(node))


def _copied_into(node: cst.CSTNode, updated: set[str]) -> str | None:
    """Return the model that a call gives the numbers of updated weights."""
    if type(node) is not cst.Call or not node.args:
        return None
    if type(node.func) is cst.Attribute and node.func.attr.value == "load_state_dict":
        return dotted_name(node.func.value) if _mentions(node.args[0], updated) else None
    is_vector = last_word(dotted_name(node.func)) == "vector_to_parameters"
    if not is_vector or len(node.args) < _PAIR or not _mentions(node.args[0], updated):
        return None
    given = node.args[1].value
    name = dotted_name(given.func) if type(given) is cst.Call else None
    return name.removesuffix(".parameters") if name is not None else None


_PAIR: Final = 2
