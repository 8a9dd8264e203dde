"""Tell whether an expression or a name is a mask: constant wherever it has a derivative."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import libcst as cst

from gradcheck_lint.model.syntax import (
    dotted_name,
    is_literal,
    keyword,
    last_word,
    positional,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.scopes import FunctionScope

__all__ = ["is_filled_mask", "is_mask"]

_STEPS: Final = frozenset({"round", "sign", "floor", "ceil", "heaviside", "sgn"})
_TRUTHS: Final = frozenset({"ge", "gt", "le", "lt", "eq", "ne"})
_INTEGERS: Final = _TRUTHS | {"argmax", "argmin", "one_hot", "bucketize", "searchsorted"}
_TO_FLOAT: Final = frozenset({"float", "double", "half", "bfloat16", "type_as"})
_CONVERSIONS: Final = frozenset({"to", "type"})
_SHAPES: Final = frozenset({"view", "reshape", "unsqueeze", "squeeze", "flatten", "contiguous"})
_FACTORIES: Final = frozenset(
    {"zeros", "zeros_like", "new_zeros", "ones", "ones_like", "new_ones", "full", "full_like"}
)
_FLOATING: Final = re.compile(r"\bdtype$|float|double|half")


def is_mask(node: cst.BaseExpression) -> bool:
    """Tell whether an expression is such a mask, or an index, in floating point."""
    if type(node) is not cst.Call:
        return False
    name = _called(node)
    if name == "where":
        return len(node.args) > 1 and all(_is_constant(each) for each in positional(node)[1:])
    return type(node.func) is cst.Attribute and _is_made_mask(node, name, node.func.value)


def _is_made_mask(node: cst.Call, name: str, inner: cst.BaseExpression) -> bool:
    """Tell whether a method makes a mask of what it is called on, or a function does."""
    if name in _STEPS:
        return True
    if name in {"scatter", "scatter_"}:
        return _is_constant(inner) and _puts_constant(node)
    if name in _SHAPES:
        return is_mask(inner)
    return _makes_float(node, name) and (is_mask(inner) or _is_whole(inner))


def is_filled_mask(name: str, source: cst.BaseExpression, scope: FunctionScope) -> bool:
    """Tell whether a name holds a constant tensor into which only constants are written."""
    if is_literal(source) or not _is_constant(source):
        return False
    writes = list(_writes(name, scope))
    return bool(writes) and all(writes)


def _writes(name: str, scope: FunctionScope) -> Iterator[bool]:
    """Yield for each write to a name whether it puts a constant there."""
    for node in scope.nodes_of(cst.AugAssign, cst.Assign, cst.Call):
        if type(node) is cst.AugAssign and _base_name(node.target) == name:
            yield False
        elif type(node) is cst.Assign:
            for each in node.targets:
                if type(each.target) is cst.Subscript and _base_name(each.target) == name:
                    yield is_literal(node.value)
        elif type(node) is cst.Call:
            method = dotted_name(node.func) or ""
            if dotted_name(keyword(node, "out")) == name:
                yield False
            elif method.endswith("_") and method.rpartition(".")[0] == name:
                yield last_word(method) in _FILLING and _puts_constant(node)


_FILLING: Final = frozenset({"scatter_", "fill_", "masked_fill_", "index_fill_"})


def _base_name(node: cst.BaseExpression) -> str | None:
    return dotted_name(node.value if type(node) is cst.Subscript else node)


def _puts_constant(node: cst.Call) -> bool:
    """Tell whether the last thing that a call is given, or its ``value``, is a number."""
    given = positional(node)
    value = keyword(node, "value") or (given[-1] if given else None)
    return is_literal(value)


def _is_constant(node: cst.BaseExpression) -> bool:
    """Tell whether this is a number, or a tensor filled with one."""
    return is_literal(node) or (type(node) is cst.Call and _called(node) in _FACTORIES)


def _is_whole(node: cst.BaseExpression) -> bool:
    """Tell whether this is made of truths or integers."""
    if type(node) is cst.Comparison:
        return True
    if type(node) is not cst.Call:
        return False
    name = _called(node)
    if type(node.func) is cst.Attribute and name in _SHAPES:
        return _is_whole(node.func.value)
    return name in _INTEGERS


def _makes_float(node: cst.Call, name: str) -> bool:
    """Tell whether a conversion is one to floating point, and not to a device or to integers."""
    if name in _TO_FLOAT:
        return True
    given = [argument.value for argument in node.args]
    return name in _CONVERSIONS and any(
        _FLOATING.search(dotted_name(each) or "") is not None for each in given
    )


def _called(node: cst.Call) -> str:
    if type(node.func) is cst.Attribute:
        return node.func.attr.value
    return last_word(dotted_name(node.func))
