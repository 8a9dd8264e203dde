"""Find residual blocks whose first layer overwrites the input that is added to their result."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

import libcst as cst

from gradcheck_lint.model.flow import Forward
from gradcheck_lint.model.syntax import dotted_name, last_word, positional
from gradcheck_lint.model.values import NOTHING, Kind, Origin, all_are, sites
from gradcheck_lint.rules.in_place.layer_sequences import is_inplace, pairs_of_layers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel, ModuleModel

__all__ = ["ResidualInput", "residual_inputs"]


class ResidualInput(NamedTuple):
    """A call that overwrites its input, the layer that does so, and the sum that reads it."""

    call: cst.CSTNode
    layer: cst.Call
    name: str
    added: cst.CSTNode


def residual_inputs(function: FunctionModel) -> Iterator[ResidualInput]:
    """Yield ``out = self.body(x)`` and ``out + x``, where ``body`` begins with ``inplace=True``.

    Not where an activation may have made the input non-negative before: in the block, whose
    result is the next block's input, or in front of it.
    """
    scope, module = function.scope, function.module
    owner = scope.owner
    if last_word(scope.name) != "forward" or owner is None or not module.mentions(b"inplace=True"):
        return
    if any(map(_ACTIVATING.search, scope.words)):
        return
    seen: dict[int, tuple[Forward, cst.Call]] = {}
    for event in function.events():
        first = _overwriting(event) if isinstance(event, Forward) else None
        if isinstance(event, Forward) and first is not None and event.passed:
            values = event.passed[0]
            if values and all(value.origin is Origin.ARGUMENT for value in values):
                seen.update(dict.fromkeys(sites(values), (event, first)))
    for node in scope.nodes if seen and not _follows_activation(owner.name, module) else ():
        for operand in _added(node):
            name = dotted_name(operand)
            found = [
                seen[s] for s in sites(function.bindings.get(name or "", NOTHING)) if s in seen
            ]
            if name is not None and len(found) == 1:
                (event, first) = found[0]
                if _is_before(event.node, node, function):
                    yield ResidualInput(event.node, first, name, node)
                    return


_ACTIVATING: Final = re.compile(r"(?i)relu|act|elu|silu|mish|tanh|sigmoid|clone|norm|bn")


def _overwriting(event: Forward) -> cst.Call | None:
    """Return the activation that a layer on ``self`` is, or begins with, if that overwrites."""
    if not all_are(event.values, Kind.MODULE) or len(event.values) != 1:
        return None
    made = next(iter(event.values)).node
    while type(made) is cst.Call and last_word(dotted_name(made.func)) == "Sequential":
        given = positional(made)
        made = given[0] if given else None
    if type(made) is not cst.Call:
        return None
    return made if is_inplace(made, last_word(dotted_name(made.func))) else None


def _added(node: cst.CSTNode) -> list[cst.BaseExpression]:
    if type(node) is cst.BinaryOperation and type(node.operator) is cst.Add:
        return [node.left, node.right]
    if type(node) is cst.AugAssign and type(node.operator) is cst.AddAssign:
        return [node.value]
    return []


def _is_before(first: cst.CSTNode, second: cst.CSTNode, function: FunctionModel) -> bool:
    """Return whether a call runs before a sum, or is one of its operands on the left."""
    if type(second) is cst.BinaryOperation and second.left is first:
        return True
    order = {id(node): place for place, node in enumerate(function.scope.nodes)}
    return order.get(id(first), 0) < order.get(id(second), 0)


def _follows_activation(owner: str, module: ModuleModel) -> bool:
    """Return whether such a block stands behind an activation in some sequence of the file."""
    return any(
        _ACTIVATING.search(last_word(dotted_name(before.func))) is not None
        for function in module.functions()
        for before, layer in pairs_of_layers(function)
        if dotted_name(layer.func) == owner
    )
