"""Find what a model computes of its input without recording, and who differentiates by that."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import libcst as cst

from gradcheck_lint.analyses.layers import called_function
from gradcheck_lint.analyses.object_uses import argument_for
from gradcheck_lint.model.flow import Call, Forward, GradMode
from gradcheck_lint.model.syntax import (
    assigned_pairs,
    bound_names,
    dotted_name,
    keyword,
    last_word,
    positional,
    walk,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gradcheck_lint.model.module import FunctionModel
    from gradcheck_lint.model.scopes import FunctionScope

__all__ = ["UnrecordedInput", "unrecorded_inputs"]


class UnrecordedInput(NamedTuple):
    """What is computed without recording, its name, and a derivative by the model's input."""

    node: cst.CSTNode
    name: str
    derivative: cst.CSTNode


def unrecorded_inputs(function: FunctionModel) -> Iterator[UnrecordedInput]:
    """Yield each value that a function computes of its input unrecorded, and computes with."""
    scope = function.scope
    unrecorded = list(_unrecorded(function))
    derivative, given = _by_input(function) if unrecorded else (None, frozenset())
    if derivative is None:
        return
    of_input = _computed_of(given, scope.nodes)
    inside = {id(node) for _, region in unrecorded for node in walk(region)}
    outside = [node for node in scope.nodes if id(node) not in inside]
    for statement, _ in unrecorded:
        for target, value in assigned_pairs(statement):
            if not of_input & _names(value):
                continue
            name = next((n for n in bound_names(target) if _is_computed_with(n, outside)), None)
            if name is not None:
                yield UnrecordedInput(value, name, derivative)


def _unrecorded(function: FunctionModel) -> Iterator[tuple[cst.CSTNode, cst.CSTNode]]:
    """Yield the statements whose value is not recorded, each with the block that it stands in.

    That is what stands under ``no_grad``, and what a function returns that is decorated so.
    """
    for node in function.scope.nodes_of(cst.With, cst.Assign):
        if type(node) is cst.With and _stops(node):
            yield from ((inner, node) for inner in walk(node.body))
        elif type(node) is cst.Assign:
            called = called_function(node.value, function)
            if called is not None and function.module.function(called).mode is GradMode.DISABLED:
                yield node, node


def _stops(region: cst.With) -> bool:
    return any(
        type(item.item) is cst.Call and last_word(dotted_name(item.item.func)) == "no_grad"
        for item in region.items
    )


def _names(node: cst.CSTNode) -> set[str]:
    return {each.value for each in walk(node) if type(each) is cst.Name}


def _computed_of(inputs: frozenset[str], nodes: Sequence[cst.CSTNode]) -> set[str]:
    """Return the names that the parameters of forward flow into."""
    known: set[str] = set(inputs)
    for _ in range(_MOST_STEPS):
        before = len(known)
        for node in nodes:
            for target, value in assigned_pairs(node):
                if known & _names(value):
                    known |= set(bound_names(target))
        if len(known) == before:
            break
    return known


_MOST_STEPS: Final = 5


def _is_computed_with(name: str, nodes: Sequence[cst.CSTNode]) -> bool:
    """Return whether a value is an operand, or put beside others: no index, and no mask."""
    for node in nodes:
        operands: list[cst.BaseExpression] = []
        if type(node) is cst.BinaryOperation:
            operands = [node.left, node.right]
        elif type(node) is cst.Call and last_word(dotted_name(node.func)) in _JOINING:
            operands = [
                element.value
                for value in positional(node)[:1]
                if isinstance(value, (cst.List, cst.Tuple))
                for element in value.elements
            ]
        if any(dotted_name(operand) == name for operand in operands):
            return True
    return False


_JOINING: Final = frozenset({"stack", "cat", "concat", "hstack", "vstack"})


class _Derivative(NamedTuple):
    """A derivative by what a function is given: which one, and as which parameters.

    A model that is called is no function, as its class may not be known.
    """

    node: cst.CSTNode
    function: FunctionScope | None
    parameters: frozenset[str]


def _by_input(function: FunctionModel) -> tuple[cst.CSTNode | None, frozenset[str]]:
    """Return a derivative of what a function returns by what it is given, and what that is."""
    key = "derivatives by what functions are given"
    memo, scope = function.module.memo, function.scope
    if key not in memo:
        memo[key] = [found for each in function.module.functions() for found in _derivatives(each)]
    derivatives: list[_Derivative] = memo[key]
    for found in derivatives:
        if found.function is scope:
            return found.node, found.parameters
        if found.function is None and scope.name.endswith(".forward"):
            return found.node, scope.parameters - {scope.first_parameter or ""}
    return None, frozenset()


def _derivatives(function: FunctionModel) -> Iterator[_Derivative]:
    """Yield each ``autograd.grad`` with the functions that are given what it differentiates by."""
    if "grad" not in function.scope.words:
        return
    for node in function.scope.nodes:
        name = dotted_name(node.func) if type(node) is cst.Call else None
        resolved = function.module.scopes.resolve_import(name or "")
        if type(node) is cst.Call and resolved == "torch.autograd.grad":
            by = keyword(node, "inputs") or next(iter(positional(node)[1:2]), None)
            if by is not None:
                yield from _given(_names(by), node, function)


def _given(names: set[str], node: cst.Call, function: FunctionModel) -> Iterator[_Derivative]:
    """Yield the functions that are given one of these names, but for what makes it."""
    making = {
        id(inner)
        for target, value in function.scope.assignments
        if names & set(bound_names(target))
        for inner in walk(value)
    }
    for event in function.events():
        call = event.node
        if not isinstance(event, (Call, Forward)) or type(call) is not cst.Call:
            continue
        given = [each for each in call.args if dotted_name(each.value) in names]
        if not given or id(call) in making:
            continue
        if isinstance(event, Forward):
            yield _Derivative(node, None, frozenset())
        elif event.function is not None:
            called = event.function
            parameters = (
                name
                for name in called.parameters
                if dotted_name(argument_for(name, call, called)) in names
            )
            yield _Derivative(node, called, frozenset(parameters))
