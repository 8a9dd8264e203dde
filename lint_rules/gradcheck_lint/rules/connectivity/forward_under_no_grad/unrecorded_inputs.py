"""Find what a model computes of its input without recording, and who differentiates by that."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import libcst as cst

from gradcheck_lint.model.flow import Forward
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

    from gradcheck_lint.model.module import FunctionModel, ModuleModel

__all__ = ["UnrecordedInput", "unrecorded_inputs"]


class UnrecordedInput(NamedTuple):
    """What is computed without recording, its name, and a derivative by the model's input."""

    node: cst.CSTNode
    name: str
    derivative: cst.CSTNode


def unrecorded_inputs(function: FunctionModel) -> Iterator[UnrecordedInput]:
    """Yield each value that forward computes of its input under ``no_grad`` and computes with."""
    scope, module = function.scope, function.module
    if "no_grad" not in scope.words or not scope.name.endswith(".forward"):
        return
    regions = [node for node in scope.nodes if isinstance(node, cst.With) and _stops(node)]
    derivative = _by_input(module) if regions else None
    if derivative is None:
        return
    of_input = _computed_of(scope.parameters - {scope.first_parameter}, scope.nodes)
    for region in regions:
        inside = {id(node) for node in walk(region)}
        outside = [node for node in scope.nodes if id(node) not in inside]
        for node in walk(region.body):
            for target, value in assigned_pairs(node):
                if not of_input & _names(value):
                    continue
                name = next((n for n in bound_names(target) if _is_computed_with(n, outside)), None)
                if name is not None:
                    yield UnrecordedInput(value, name, derivative)


def _stops(region: cst.With) -> bool:
    return any(
        isinstance(item.item, cst.Call) and last_word(dotted_name(item.item.func)) == "no_grad"
        for item in region.items
    )


def _names(node: cst.CSTNode) -> set[str]:
    return {each.value for each in walk(node) if isinstance(each, cst.Name)}


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
        if isinstance(node, cst.BinaryOperation):
            operands = [node.left, node.right]
        elif isinstance(node, cst.Call) and last_word(dotted_name(node.func)) in _JOINING:
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


def _by_input(module: ModuleModel) -> cst.CSTNode | None:
    """Return a derivative of what a model returns by what it is given."""
    key = "derivative by the input of a model"
    if key not in module.memo:
        found = (node for function in module.functions() for node in _derivatives(function))
        module.memo[key] = next(found, None)
    known: cst.CSTNode | None = module.memo[key]
    return known


def _derivatives(function: FunctionModel) -> Iterator[cst.CSTNode]:
    if "grad" not in function.scope.words or function.scope.name.endswith(".forward"):
        return
    given: set[str] = set()
    for event in function.events():
        if isinstance(event, Forward) and isinstance(event.node, cst.Call):
            given |= {dotted_name(argument.value) or "" for argument in event.node.args}
    for node in function.scope.nodes:
        name = dotted_name(node.func) if isinstance(node, cst.Call) else None
        resolved = function.module.scopes.resolve_import(name or "")
        if isinstance(node, cst.Call) and resolved == "torch.autograd.grad":
            by = keyword(node, "inputs") or next(iter(positional(node)[1:2]), None)
            if by is not None and _names(by) & given:
                yield node
