"""Recognize tensors that a factory has made."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from gradcheck_lint.model.knowledge import FACTORIES, words
from gradcheck_lint.model.syntax import dotted_name, keyword

if TYPE_CHECKING:
    from gradcheck_lint.model.module import FunctionModel
    from gradcheck_lint.model.values import Values

_FACTORY_METHODS = frozenset(
    {"new_zeros", "new_empty", "new_ones", "new_full", "clone", "empty_like", "zeros_like"}
)


def is_preallocated(values: Values, function: FunctionModel, *, outside: int | None = None) -> bool:
    """Tell whether each value is a tensor made by a factory, before the loop ``outside``."""
    return bool(values) and all(
        type(value.node) is cst.Call
        and (outside is None or outside not in value.loops)
        and _makes_tensor(value.node, function)
        for value in values
    )


def _makes_tensor(node: cst.Call, function: FunctionModel) -> bool:
    func = node.func
    while type(func) is cst.Attribute and func.attr.value in _MOVES:
        if type(func.value) is not cst.Call:
            return False
        node = func.value
        func = node.func
    dtype = dotted_name(keyword(node, "dtype")) or ""
    if dtype.rpartition(".")[2] in _WITHOUT_GRADIENT:
        return False
    qualified = function.module.scopes.resolve_import(dotted_name(node.func) or "") or ""
    if qualified in FACTORIES:
        return True
    return type(func) is cst.Attribute and func.attr.value in _FACTORY_METHODS


_WITHOUT_GRADIENT = words("bool int int8 int16 int32 int64 long short uint8 uint16 uint32 uint64")
"""Types of tensors that have no graph, whatever is written into them."""

_MOVES = frozenset({"to", "cuda", "float", "double", "half", "type_as"})
