"""Find states that an inner loop hands on, and that go into the next window of the outer one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import libcst as cst

from gradcheck_lint.model.syntax import ASSIGNING, bound_names, dotted_name, walk

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gradcheck_lint.model.flow import Backward, Forward
    from gradcheck_lint.model.module import FunctionModel

__all__ = ["goes_into_next_window"]

_BEGINS_ANEW: Final = frozenset({"detach_", "zero_", "fill_", "copy_", "data", "clear", "pop"})


def goes_into_next_window(function: FunctionModel, event: Forward, backward: Backward) -> bool:
    """Tell whether what a call in an inner loop is given comes from the window before as well.

    ``backward`` ends a window, in a loop around that of the call. The state is bound before both
    loops, and by nothing but that call within them.
    """
    depth = len(backward.loops)
    if not depth or len(event.loops) <= depth or event.loops[:depth] != backward.loops:
        return False
    around = {loop.identity: loop.node for loop in function.loops()}
    outer = around.get(backward.loops[-1])
    if outer is None or type(event.node) is not cst.Call:
        return False
    nodes = list(walk(outer))
    return any(
        _is_only_bound_by(event.node, name, nodes) for name in _given(event.node, function, event)
    )


def _given(call: cst.Call, function: FunctionModel, event: Forward) -> Iterator[str]:
    """Yield the names that a call is given, alone or in tuples, of what it has returned."""
    for argument in call.args:
        for node in _elements(argument.value):
            held = function.bindings.get(node.value, frozenset())
            if any(value.result_of == id(event.node) for value in held):
                yield node.value


def _elements(node: cst.BaseExpression) -> Iterator[cst.Name]:
    if type(node) is cst.Name:
        yield node
    elif isinstance(node, (cst.Tuple, cst.List)):
        for element in node.elements:
            yield from _elements(element.value)


def _is_only_bound_by(call: cst.Call, name: str, nodes: Sequence[cst.CSTNode]) -> bool:
    """Tell whether a name is given nothing but what a call returns, and isn't changed in place."""
    for node in nodes:
        if type(node) in ASSIGNING or isinstance(node, (cst.NamedExpr, cst.AugAssign)):
            if _binds(node, name) and not _is_of(node, call):
                return False
        elif isinstance(node, (cst.For, cst.CompFor)):
            if name in set(bound_names(node.target)):
                return False
        elif type(node) is cst.Attribute and node.attr.value in _BEGINS_ANEW:
            if dotted_name(node.value) == name:
                return False
        elif isinstance(node, (cst.Del, cst.Global, cst.Nonlocal)):
            return False
    return True


def _binds(node: cst.CSTNode, name: str) -> bool:
    targets: list[cst.BaseExpression] = []
    if type(node) is cst.Assign:
        targets += [each.target for each in node.targets]
    elif isinstance(node, (cst.AnnAssign, cst.NamedExpr, cst.AugAssign)):
        targets.append(node.target)
    return any(
        bound == name or bound.startswith(f"{name}.")
        for target in targets
        for bound in bound_names(target.value if type(target) is cst.Subscript else target)
    )


def _is_of(node: cst.CSTNode, call: cst.Call) -> bool:
    return type(node) is cst.Assign and node.value is call
