"""Find recurrent states that are detached after each time step of one forward."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import libcst as cst

from gradcheck_lint.model.flow import Backward, Call, GradMode
from gradcheck_lint.model.nearness import BACKWARD
from gradcheck_lint.model.syntax import assigned_pairs, bound_names, dotted_name, walk

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.flow import Loop
    from gradcheck_lint.model.module import FunctionModel

__all__ = ["cut_states"]


def cut_states(function: FunctionModel) -> Iterator[tuple[cst.CSTNode, str]]:
    """Yield each ``h = h.detach()`` in a loop over time in which nothing is differentiated."""
    module = function.module
    if "detach" not in function.scope.words or not module.matches(_IS_RECURRENT):
        return
    if function.mode is GradMode.DISABLED:
        return
    if module.modes_of_callers(function.scope) == frozenset({GradMode.DISABLED}):
        return
    for loop in function.loops():
        if not _is_over_steps(loop.node) or _differentiates(loop, function):
            continue
        nodes = list(walk(loop.node))
        for node in nodes:
            for target, value in assigned_pairs(node):
                name = dotted_name(target)
                if name is None or not _detaches(value, name) or id(value) in module.unrecorded:
                    continue
                outputs = {each for known in nodes for each in _beside(known, name)}
                if any(_collects(known, outputs - {name}) for known in nodes):
                    yield node, name


_IS_RECURRENT: Final = re.compile(rb"GRU|LSTM|RNN")


def _is_over_steps(node: cst.CSTNode) -> bool:
    """Return whether a loop goes one by one: one over windows, ``range(0, n, k)``, does not."""
    if type(node) is not cst.For or type(node.iter) is not cst.Call:
        return False
    name = dotted_name(node.iter.func)
    return name == "range" and len(node.iter.args) <= _START_AND_END


_START_AND_END: Final = 2


def _differentiates(loop: Loop, function: FunctionModel) -> bool:
    """Return whether a loop ends a window itself: then the cut is what keeps it short."""
    return any(
        isinstance(event, Backward)
        or (
            isinstance(event, Call)
            and event.function is not None
            and function.module.near.has(event.function, BACKWARD)
        )
        for event in loop.body.events()
    )


def _detaches(value: cst.BaseExpression, name: str) -> bool:
    """Return whether this is ``h.detach()``, or that of the tensors in ``h``."""
    is_cut = any(
        type(each) is cst.Attribute and each.attr.value == "detach" for each in walk(value)
    )
    names = {each.value for each in walk(value) if type(each) is cst.Name}
    is_call = isinstance(value, (cst.Call, cst.Tuple, cst.List, cst.ListComp))
    return is_call and is_cut and name in names and not _calls_anything_else(value)


def _calls_anything_else(value: cst.BaseExpression) -> bool:
    return any(
        type(each) is cst.Call
        and dotted_name(each.func) != "tuple"
        and not (type(each.func) is cst.Attribute and each.func.attr.value == "detach")
        for each in walk(value)
    )


def _beside(node: cst.CSTNode, name: str) -> Iterator[str]:
    """Yield what ``out, h = cell(x, h)`` binds, where it is given the state as well."""
    for target, value in assigned_pairs(node):
        bound = set(bound_names(target))
        given = value.args if type(value) is cst.Call else ()
        if name in bound and any(dotted_name(argument.value) == name for argument in given):
            yield from bound


def _collects(node: cst.CSTNode, outputs: set[str]) -> bool:
    """Return whether an output goes into a list or a sum."""
    if type(node) is cst.AugAssign:
        return any(dotted_name(each) in outputs for each in walk(node.value))
    if type(node) is not cst.Call or type(node.func) is not cst.Attribute:
        return False
    is_kept = node.func.attr.value in {"append", "extend"}
    return is_kept and any(dotted_name(each) in outputs for arg in node.args for each in walk(arg))
