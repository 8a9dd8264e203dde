"""Steps that a loop makes by hand, ``w -= lr * w.grad``, and what it does about the gradients."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

import libcst as cst

from gradcheck_lint.analyses.layers import called_function
from gradcheck_lint.analyses.object_uses import argument_for
from gradcheck_lint.model.flow import Backward, Step, ZeroGrad, can_repeat
from gradcheck_lint.model.nearness import BACKWARD
from gradcheck_lint.model.syntax import (
    assigned_once,
    assigned_pairs,
    bound_names,
    dotted_name,
    first_word,
    walk,
)
from gradcheck_lint.model.values import Kind, Origin, sites

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from gradcheck_lint.model.flow import Loop
    from gradcheck_lint.model.module import FunctionModel
    from gradcheck_lint.model.scopes import FunctionScope

__all__ = ["HandStep", "unzeroed_hand_steps"]


class HandStep(NamedTuple):
    """Where a tensor is changed by its own gradient, which a loop never zeroes."""

    node: cst.CSTNode
    name: str
    backward: Backward
    loop: Loop


def unzeroed_hand_steps(function: FunctionModel) -> Iterator[HandStep]:
    """Yield the first step by hand of each loop that differentiates and zeroes nothing."""
    scope = function.scope
    if "grad" not in scope.words or not function.module.near.has_itself(scope, BACKWARD):
        return
    backwards = [
        event
        for event in function.events()
        if isinstance(event, Backward) and event.loops and not event.by_engine
    ]
    for loop in function.loops():
        own = [event for event in backwards if event.loops[-1] == loop.identity]
        if not own or not can_repeat(loop, own[0]):
            continue
        nodes = list(walk(loop.node))
        zeroing = [node for node in nodes if _may_zero(node)]
        bound = loop.targets | set(_assigned(nodes))
        gradients = _gradients_in(nodes)
        for node in nodes:
            name = _stepped(node, gradients) or _stepped_by_callee(node, gradients, function)
            if name is None or not _is_from_outside(name, bound, nodes):
                continue
            is_made_before = name in function.bindings.keys() - bound - function.scope.parameters
            if not zeroing or (
                is_made_before and not any(_may_be_of(name, each, function) for each in zeroing)
            ):
                yield HandStep(node, name, own[0], loop)
                break


def _may_be_of(name: str, zeroing: cst.CSTNode, function: FunctionModel) -> bool:
    """Return whether what may zero gradients may zero those of a tensor.

    An optimizer or model that was there before the function made the tensor does not have it.
    """
    owners = [
        value
        for event in function.events()
        if isinstance(event, (Step, ZeroGrad)) and event.node is zeroing
        for value in event.values
    ]
    held = sites(function.bindings[name])
    for value in owners:
        is_older = value.origin in {Origin.ARGUMENT, Origin.ATTRIBUTE}
        is_made_of_others = value.kind in {Kind.OPTIMIZER, Kind.MODULE, Kind.INSTANCE}
        reached = value.holds | value.mentions
        if not (is_older or is_made_of_others) or not reached.isdisjoint(held):
            return True
    return not owners or "." in name or _is_attached(name, function.scope)


def _is_attached(name: str, scope: FunctionScope) -> bool:
    """Return whether a tensor is given to an object, which may be a model."""
    return "add_param_group" in scope.words or any(
        isinstance(target, (cst.Attribute, cst.Subscript)) and dotted_name(value) == name
        for target, value in scope.assignments
    )


def _gradients_in(nodes: Sequence[cst.CSTNode]) -> dict[str, str]:
    """Return the names that a loop gives a gradient, ``g = w.grad.sign()``, each with whose."""
    found: dict[str, str] = {}
    for node in nodes:
        for target, value in assigned_pairs(node):
            if type(target) is cst.Name:
                for inner in walk(value):
                    name = dotted_name(inner) if type(inner) is cst.Attribute else None
                    if name is not None and name.endswith(".grad"):
                        found[target.value] = name.removesuffix(".grad")
    return found


def _names_gradient(node: cst.CSTNode, name: str, gradients: Mapping[str, str]) -> bool:
    return any(
        dotted_name(inner) == f"{name}.grad"
        if type(inner) is cst.Attribute
        else type(inner) is cst.Name and gradients.get(inner.value) == name
        for inner in walk(node)
    )


def _stepped_by_callee(
    node: cst.CSTNode, gradients: Mapping[str, str], function: FunctionModel
) -> str | None:
    """Return the tensor that a call gives, with its gradient, to a function that writes to it."""
    if type(node) is not cst.Call or len(node.args) < _PAIR:
        return None
    called = called_function(node, function)
    for argument in node.args if called is not None else ():
        name = dotted_name(argument.value)
        if name is None or not _names_gradient(node, name, gradients):
            continue
        for parameter in called.parameters:  # type: ignore[union-attr]
            is_it = argument_for(parameter, node, called) is argument.value  # type: ignore[arg-type]
            if is_it and any(parameter == _written(each) for each in called.nodes):  # type: ignore[union-attr]
                return name
    return None


_PAIR: Final = 2


def _written(node: cst.CSTNode) -> str | None:
    """Return the tensor that a statement changes in place, without ``.data``."""
    if type(node) is cst.AugAssign:
        target: cst.BaseExpression | None = node.target
    elif type(node) is cst.Assign:
        target, _ = assigned_once(node)
        if type(target) is not cst.Attribute or target.attr.value != "data":
            return None
    else:
        called = node.func if type(node) is cst.Call else None
        is_change = type(called) is cst.Attribute and called.attr.value[-1] == "_"
        target = called.value if is_change else None  # type: ignore[union-attr]
    name = dotted_name(target)
    return None if name is None else name.removesuffix(".data")


def _may_zero(node: cst.CSTNode) -> bool:
    """Tell whether a node may see to a gradient, or is a call of something that may."""
    if type(node) is cst.Assign:
        return any(_is_gradient(each.target) for each in node.targets)
    if type(node) is cst.AugAssign or type(node) is cst.Del:
        return _is_gradient(node.target)
    if type(node) is not cst.Call:
        return False
    name = (dotted_name(node.func) or "").lower()
    if _ZEROES.search(name) is not None:
        return True
    func = node.func
    return type(func) is cst.Attribute and func.attr.value[-1] == "_" and _is_gradient(func.value)


_ZEROES: Final = re.compile(r"zero(?!s)|reset|clear|clean|step|optim|autograd")


def _is_gradient(node: cst.CSTNode) -> bool:
    """Tell whether this is ``x.grad``, its data or an item of it."""
    while type(node) is cst.Subscript or (
        type(node) is cst.Attribute and node.attr.value == "data"
    ):
        node = node.value
    return type(node) is cst.Attribute and node.attr.value == "grad"


def _assigned(nodes: Sequence[cst.CSTNode]) -> Iterator[str]:
    """Yield the names that a loop binds, which may be anew in each iteration."""
    for node in nodes:
        if type(node) is cst.Assign:
            for each in node.targets:
                yield from bound_names(each.target)
        elif isinstance(node, (cst.AnnAssign, cst.NamedExpr, cst.For, cst.CompFor)):
            yield from bound_names(node.target)
        elif type(node) is cst.AsName:
            yield from bound_names(node.name)


def _stepped(node: cst.CSTNode, gradients: Mapping[str, str]) -> str | None:
    """Return what a statement changes by its own gradient: ``w`` of ``w.data -= lr * w.grad``."""
    name = _written(node)
    if name is None:
        return None
    given: list[cst.CSTNode] = []
    if type(node) is cst.Call:
        given = [argument.value for argument in node.args]
    elif isinstance(node, (cst.Assign, cst.AugAssign)):
        given = [node.value]
    return name if any(_names_gradient(each, name, gradients) for each in given) else None


def _is_from_outside(name: str, bound: Collection[str], nodes: Sequence[cst.CSTNode]) -> bool:
    """Tell whether a tensor, or what a loop within takes it from, is there before the loop."""
    root = first_word(name)
    if root not in bound:
        return True
    sources = [
        node.iter
        for node in nodes[1:]
        if type(node) is cst.For and root in set(bound_names(node.target))
    ]
    if len(sources) != 1:
        return False
    names = {inner.value for inner in walk(sources[0]) if type(inner) is cst.Name}
    return bool(names) and names.isdisjoint(bound)
