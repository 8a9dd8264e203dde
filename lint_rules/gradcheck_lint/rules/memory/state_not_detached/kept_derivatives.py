"""Find states that are averaged with derivatives which have a graph: ``create_graph=True``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import libcst as cst

from gradcheck_lint.model.flow import GradMode
from gradcheck_lint.model.grad_mode import unrecorded_by_with
from gradcheck_lint.model.name_sources import sources_of
from gradcheck_lint.model.syntax import (
    assigned_pairs,
    boolean,
    bound_names,
    child_list,
    dotted_name,
    keyword,
    last_word,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel
    from gradcheck_lint.model.scopes import FunctionScope

__all__ = ["kept_derivatives"]

_CUTTING: Final = frozenset({"detach", "item", "tolist", "numpy"})
_IN_PLACE: Final = frozenset({"add_", "addcmul_", "addcdiv_", "lerp_", "sub_"})
_MOST_NAMES: Final = 3
"""How many names lead from what an object keeps to what is written."""


def kept_derivatives(function: FunctionModel) -> Iterator[cst.CSTNode]:
    """Yield every update of an object's state by what ``autograd.grad`` returned with its graph.

    It is made of its own last value, so that each update adds to the graphs of those before.
    """
    scope, scopes = function.scope, function.module.scopes
    if scope.owner is None or not {"grad", "create_graph"} <= scope.words:
        return
    modes = function.module.modes_of_callers(scope)
    if function.mode is GradMode.DISABLED or GradMode.DISABLED in modes:
        return
    derived = _derived(function)
    unrecorded = unrecorded_by_with(scope.nodes, scopes) if derived else set()
    for node in scope.nodes:
        if id(node) in unrecorded or not derived:
            continue
        for target, value in assigned_pairs(node):
            is_place = isinstance(target, (cst.Subscript, cst.Attribute))
            is_sum = is_place and _is_kept(target, scope, 0) and _reads(value, target)
            if is_sum and _has(value, derived):
                yield node
        if type(node) is cst.Call and type(node.func) is cst.Attribute:
            is_added = node.func.attr.value in _IN_PLACE and _is_kept(node.func.value, scope, 0)
            if is_added and any(_has(argument.value, derived) for argument in node.args):
                yield node


def _derived(function: FunctionModel) -> set[str]:
    """Return the names of derivatives with a graph, and of what is computed of them."""
    derived: set[str] = set()
    for node in function.scope.nodes:
        for target, value in assigned_pairs(node):
            if _is_derivative(value, function) or _has(value, derived):
                derived.update(name for name in bound_names(target) if "." not in name)
        if type(node) is cst.For:
            derived.update(_bound_by(node, derived))
    return derived


def _is_derivative(node: cst.CSTNode, function: FunctionModel) -> bool:
    while type(node) is cst.Subscript:
        node = node.value
    if type(node) is not cst.Call:
        return False
    name = function.module.scopes.resolve_import(dotted_name(node.func) or "")
    return name == "torch.autograd.grad" and boolean(keyword(node, "create_graph")) is True


def _bound_by(loop: cst.For, derived: set[str]) -> Iterator[str]:
    """Yield the names that a loop over derivatives binds to one, of ``zip`` those beside them."""
    iterated = loop.iter
    is_zip = type(iterated) is cst.Call and dotted_name(iterated.func) == "zip"
    if is_zip and type(loop.target) is cst.Tuple:
        assert type(iterated) is cst.Call
        for element, argument in zip(loop.target.elements, iterated.args, strict=False):
            if _has(argument.value, derived):
                yield from bound_names(element.value)
    elif _has(iterated, derived):
        yield from bound_names(loop.target)


def _has(node: cst.CSTNode, names: set[str]) -> bool:
    """Return whether an expression reads one of some names and does not cut its graph."""
    if type(node) is cst.Name:
        return node.value in names
    if type(node) is cst.Call and last_word(dotted_name(node.func)) == "grad":
        return boolean(keyword(node, "create_graph")) is True
    method = node.func if type(node) is cst.Call else None
    if type(method) is cst.Attribute and method.attr.value in _CUTTING:
        return False
    if type(node) is cst.Attribute:
        return node.attr.value != "data" and _has(node.value, names)
    if type(node) is cst.Arg:
        return _has(node.value, names)
    return any(_has(child, names) for child in child_list(node))


def _is_kept(node: cst.CSTNode, scope: FunctionScope, names: int) -> bool:
    """Return whether this is something that the object of a method keeps, or an item of it."""
    while isinstance(node, (cst.Subscript, cst.Call)):
        if isinstance(node, cst.Subscript):
            node = node.value
        elif type(node.func) is cst.Attribute and (
            node.func.attr.value.endswith("_") or node.func.attr.value in {"setdefault", "get"}
        ):
            node = node.func.value
        else:
            return False
    path = dotted_name(node) or ""
    if path.startswith(f"{scope.first_parameter}."):
        return True
    sources = sources_of(scope).get(path) or ()
    return names < _MOST_NAMES and any(_is_kept(each, scope, names + 1) for each in sources)


def _reads(value: cst.CSTNode, target: cst.CSTNode) -> bool:
    return value.deep_equals(target) or any(_reads(child, target) for child in child_list(value))
