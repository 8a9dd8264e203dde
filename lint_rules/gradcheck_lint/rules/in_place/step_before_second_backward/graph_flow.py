"""Tell how surely what one expression computes flows into another one of the same function."""

from __future__ import annotations

from collections import defaultdict
from enum import IntEnum
from typing import TYPE_CHECKING, Final

import libcst as cst

from gradcheck_lint.model.flow import Forward
from gradcheck_lint.model.knowledge import (
    MAYBE_ITSELF_METHODS,
    SAME_GRAPH_METHODS,
    TENSOR_METHODS,
    VIEW_METHODS,
    words,
)
from gradcheck_lint.model.syntax import bound_names, child_list, dotted_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from gradcheck_lint.model.module import FunctionModel

__all__ = ["Flow", "flow"]


class Flow(IntEnum):
    """How sure it is that a graph flows from one place to another."""

    NONE = 0
    LIKELY = 1
    SURE = 2


def flow(function: FunctionModel, source: cst.CSTNode, into: cst.CSTNode) -> Flow:
    """Tell whether the graph of ``source`` flows into an expression, by what names are given.

    What becomes of the arguments of a method of an object that can't be looked into is unknown: a
    tensor, or a number as of ``meter.update(loss)``.
    """
    if not any(node is source for node in function.scope.nodes):
        return Flow.SURE  # somewhere else, where this does not look
    bound = _bound(function)
    models = {id(event.node) for event in function.events() if isinstance(event, Forward)}

    def hands_on(call: cst.Call) -> bool:
        return id(call) in models or _hands_on(call, function, through_unknown=False)

    def may_hand_on(call: cst.Call) -> bool:
        return id(call) in models or _hands_on(call, function, through_unknown=True)

    if _reaches(source, into, bound, hands_on):
        return Flow.SURE
    return Flow.LIKELY if _reaches(source, into, bound, may_hand_on) else Flow.NONE


def _reaches(
    source: cst.CSTNode,
    into: cst.CSTNode,
    bound: dict[str, list[cst.CSTNode]],
    hands_on: Callable[[cst.Call], bool],
) -> bool:
    """Tell whether there is a way from an expression back to the source, from name to name."""
    stack, seen = [into], set[str]()
    while stack:
        node = stack.pop()
        if node is source:
            return True
        path = dotted_name(node) if isinstance(node, (cst.Name, cst.Attribute)) else None
        if path is not None:
            for name in _with_owners(path):
                if name not in seen:
                    seen.add(name)
                    stack.extend(bound.get(name, ()))
        if type(node) is cst.Call and not hands_on(node):
            stack.append(node.func)
        else:
            stack.extend(child_list(node))
    return False


def _hands_on(node: cst.Call, function: FunctionModel, *, through_unknown: bool) -> bool:
    """Tell whether the arguments of a call may flow into what it returns."""
    func = node.func
    if type(func) is not cst.Attribute:
        return True
    name = func.attr.value
    if name in _OF_TENSORS or any(word in name.lower() for word in _OF_LOSSES):
        return True
    path = dotted_name(func.value)
    if path is None or function.module.scopes.resolve_import(path) is not None:
        return True
    if path == function.scope.first_parameter and function.scope.owner is not None:
        return True
    return through_unknown and name not in _OF_RECORDS


def _bound(function: FunctionModel) -> dict[str, list[cst.CSTNode]]:
    """Return what each name is given, in whichever way."""
    found = defaultdict[str, "list[cst.CSTNode]"](list)
    for node in function.scope.nodes:
        for target, given in _bindings(node):
            name = dotted_name(target)
            names: Iterable[str] = bound_names(target) if name is None else (name,)
            for each in names:
                found[each].append(given)
    return found


def _bindings(node: cst.CSTNode) -> Iterator[tuple[cst.BaseExpression, cst.CSTNode]]:
    if type(node) is cst.Assign:
        for each in node.targets:
            yield _base(each.target), node.value
    elif isinstance(node, (cst.AnnAssign, cst.AugAssign, cst.NamedExpr)):
        if node.value is not None:
            yield _base(node.target), node.value
    elif isinstance(node, (cst.For, cst.CompFor)):
        yield node.target, node.iter
    elif type(node) is cst.WithItem and node.asname is not None:
        if isinstance(node.asname.name, (cst.Name, cst.Tuple, cst.List)):
            yield node.asname.name, node.item
    elif (
        type(node) is cst.Call
        and type(node.func) is cst.Attribute
        and node.func.attr.value in _FILLS
    ):
        for argument in node.args:
            yield _base(node.func.value), argument.value


def _base(target: cst.BaseExpression) -> cst.BaseExpression:
    """Return ``x`` of ``x[0]["a"]``: what is put into a part is in the whole."""
    while type(target) is cst.Subscript:
        target = target.value
    return target


def _with_owners(path: str) -> Iterator[str]:
    """Yield ``out``, ``out.loss`` and so on: a part has what the whole was given."""
    parts = path.split(".")
    for length in range(1, len(parts) + 1):
        yield ".".join(parts[:length])


_OF_TENSORS: Final = TENSOR_METHODS | SAME_GRAPH_METHODS | VIEW_METHODS | MAYBE_ITSELF_METHODS
_OF_LOSSES: Final = (
    *("loss", "criterion", "penalty", "objective", "bce", "mse", "scale"),
    *("forward", "backward", "apply"),
)
"""In the names of methods that make a loss, or hand on a graph whatever it belongs to."""

_OF_RECORDS: Final = words(
    """
    add_scalar append debug feed info insert log note observe print push put record register report
    step store track tune update warning write
    """
)
"""Methods that take note of what they're given, and return a number or nothing of it."""

_FILLS: Final = frozenset({"add", "append", "extend", "insert", "setdefault", "update"})
