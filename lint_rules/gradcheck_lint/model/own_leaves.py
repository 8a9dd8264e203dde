"""Tell whose gradient is zeroed: that of a tensor which the function itself has made a leaf."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import libcst as cst

from gradcheck_lint.model.knowledge import FACTORIES, VARIABLE_CLASSES, words
from gradcheck_lint.model.syntax import dotted_name
from gradcheck_lint.model.values import NO_SITES, Kind, sites

if TYPE_CHECKING:
    from gradcheck_lint.model.reading import Reading
    from gradcheck_lint.model.values import Value

__all__ = ["own_leaf"]

_TENSORS: Final = frozenset({Kind.LEAF, Kind.PLAIN, Kind.HISTORY, Kind.UNKNOWN})
_MAKES_NEW: Final = words("clone detach new_zeros new_ones new_full new_empty new_tensor")
_KEEPS: Final = words(
    """
    requires_grad_ to cuda cpu float double half contiguous uniform_ normal_ zero_ fill_ clamp_
    """
)


def own_leaf(reading: Reading, target: cst.BaseExpression) -> frozenset[int]:
    """Return the sites of ``x`` in ``x.grad`` or ``x.grad.data``, where ``x`` was made right here.

    A tensor that is not yet there when an optimizer is made can't be one of its parameters.
    """
    while not (type(target) is cst.Attribute and target.attr.value == "grad"):
        if not isinstance(target, (cst.Attribute, cst.Subscript)):
            return NO_SITES
        target = target.value
    if type(target.value) is not cst.Name:
        return NO_SITES
    values = reading.look_up(target.value.value)
    if not values or not all(_is_made_here(reading, value) for value in values):
        return NO_SITES
    return sites(values)


def _is_made_here(reading: Reading, value: Value) -> bool:
    return value.kind in _TENSORS and _is_new(reading, value.node)


def _is_new(reading: Reading, node: cst.CSTNode | None) -> bool:
    """Tell whether a call makes a tensor that nobody else has."""
    while type(node) is cst.Call and type(node.func) is cst.Attribute:
        method = node.func.attr.value
        if method in _MAKES_NEW:
            return True
        if method not in _KEEPS:
            break
        node = node.func.value
    if type(node) is not cst.Call:
        return False
    whole = reading.qualified(dotted_name(node.func)) or ""
    return whole in FACTORIES or whole in VARIABLE_CLASSES
