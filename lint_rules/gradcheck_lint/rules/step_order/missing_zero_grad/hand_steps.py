"""Steps that a loop makes by hand, ``w -= lr * w.grad``, and what it does about the gradients."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

import libcst as cst

from gradcheck_lint.model.flow import Backward, can_repeat
from gradcheck_lint.model.nearness import BACKWARD
from gradcheck_lint.model.syntax import assigned_once, bound_names, dotted_name, first_word, walk

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from gradcheck_lint.model.flow import Loop
    from gradcheck_lint.model.module import FunctionModel

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
        if any(map(_may_zero, nodes)):
            continue
        bound = loop.targets | set(_assigned(nodes))
        for node in nodes:
            name = _stepped(node)
            if name is not None and _is_from_outside(name, bound, nodes):
                yield HandStep(node, name, own[0], loop)
                break


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


def _stepped(node: cst.CSTNode) -> str | None:
    """Return what a statement changes by its own gradient: ``w`` of ``w.data -= lr * w.grad``."""
    target: cst.BaseExpression
    if type(node) is cst.AugAssign:
        target, given = node.target, [node.value]
    elif type(node) is cst.Assign:
        written, value = assigned_once(node)
        if type(written) is not cst.Attribute or written.attr.value != "data" or value is None:
            return None
        target, given = written, [value]
    elif (
        type(node) is cst.Call
        and type(node.func) is cst.Attribute
        and node.func.attr.value[-1] == "_"
    ):
        target, given = node.func.value, [argument.value for argument in node.args]
    else:
        return None
    name = dotted_name(target)
    if name is None:
        return None
    name = name.removesuffix(".data")
    wanted = f"{name}.grad"
    found = any(
        type(inner) is cst.Attribute and dotted_name(inner) == wanted
        for each in given
        for inner in walk(each)
    )
    return name if found else None


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
