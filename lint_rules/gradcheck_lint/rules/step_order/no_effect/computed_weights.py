"""Find writes to the weight of a layer that is computed anew of others in each forward."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import libcst as cst

from gradcheck_lint.model.syntax import dotted_name, keyword, positional

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel

__all__ = ["ComputedWrite", "computed_writes"]


class ComputedWrite(NamedTuple):
    """A write to ``<layer>.weight``, and the normalization of the layer that computes it."""

    write: cst.CSTNode
    layer: str
    normalized: cst.Call


_COMPUTING: Final = frozenset(
    {
        "torch.nn.utils.weight_norm",
        "torch.nn.utils.parametrizations.weight_norm",
        "torch.nn.utils.parametrizations.spectral_norm",
        "torch.nn.utils.parametrizations.orthogonal",
    }
)
"""What replaces a weight by a computed one; the older ``spectral_norm`` leaves it at first."""


def computed_writes(function: FunctionModel) -> Iterator[ComputedWrite]:
    """Yield writes to the weight of ``self.conv = weight_norm(nn.Conv1d(...))``.

    The layer has that name from the one place on where it is normalized, so all writes come after.
    """
    scope, module = function.scope, function.module
    if "weight" not in scope.words or not module.mentions(b"weight_norm", b"parametrizations"):
        return
    if module.mentions(b"remove_weight_norm", b"remove_parametrizations"):
        return
    normalized = _normalized(function)
    for node in scope.nodes:
        target = _written(node, function) if normalized else None
        while type(target) is cst.Subscript:
            target = target.value
        layer = (dotted_name(target) or "").removesuffix(".data").removesuffix(".weight")
        if layer in normalized and dotted_name(target) != layer:
            yield ComputedWrite(node, layer, normalized[layer])


def _normalized(function: FunctionModel) -> dict[str, cst.Call]:
    """Return the names and attributes that are given a normalized layer, once and nothing else."""
    found: dict[str, list[cst.BaseExpression]] = {}
    scopes = [function.scope]
    owner = function.scope.owner
    if owner is not None:
        scopes += [each for each in owner.methods.values() if each is not function.scope]
    for scope in scopes:
        for target, value in scope.assignments:
            name = dotted_name(target)
            if name is not None and (scope is function.scope or "." in name):
                found.setdefault(name, []).append(value)
    return {
        name: values[0]
        for name, values in found.items()
        if len(values) == 1 and type(values[0]) is cst.Call and _computes(values[0], function)
    }


def _computes(call: cst.Call, function: FunctionModel) -> bool:
    """Return whether this normalizes the weight of a layer that is made there."""
    known = function.module.scopes.resolve_import(dotted_name(call.func) or "")
    given = positional(call)
    return (
        known in _COMPUTING
        and len(given) == 1
        and type(given[0]) is cst.Call
        and keyword(call, "name") is None
    )


def _written(node: cst.CSTNode, function: FunctionModel) -> cst.BaseExpression | None:
    """Return what a node writes to in place, or sets the data of."""
    if type(node) is cst.AugAssign:
        return node.target
    if type(node) is cst.AssignTarget:
        # `conv.weight = value` is turned back into what the weight is computed of.
        inner = node.target
        is_part = type(inner) is cst.Subscript or (dotted_name(inner) or "").endswith(".data")
        return inner if is_part else None
    if type(node) is not cst.Call or type(node.func) is not cst.Attribute:
        return None
    method = node.func.attr.value
    if not method.endswith("_") or method.startswith(("_", "requires_grad", "retain_grad")):
        return None
    known = function.module.scopes.resolve_import(dotted_name(node.func) or "") or ""
    if known.startswith("torch.nn.init."):
        return positional(node)[0] if positional(node) else keyword(node, "tensor")
    return node.func.value
