"""Count the gradients that a backward returns, where its source shows how many there are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import libcst as cst

from gradcheck_lint.model.knowledge import (
    INPLACE_METHODS,
    MAYBE_ITSELF_METHODS,
    SAME_GRAPH_METHODS,
    TENSOR_METHODS,
    VIEW_ATTRIBUTES,
    VIEW_METHODS,
    words,
)
from gradcheck_lint.model.name_sources import augmented_names, sources_of
from gradcheck_lint.model.syntax import dotted_name, is_none

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gradcheck_lint.model.name_sources import Sources
    from gradcheck_lint.model.scopes import FunctionScope, Scopes

_OF_SEVERAL: Final = words(
    """
    aminmax chunk cummax cummin frexp kthvalue max median min mode numpy sort split std tensor_split
    topk unbind unique var where
    """
)
"""Methods that return several tensors, or do so if they are given a dimension."""

_OF_ONE: Final = (
    TENSOR_METHODS | SAME_GRAPH_METHODS | VIEW_METHODS | MAYBE_ITSELF_METHODS | INPLACE_METHODS
) - _OF_SEVERAL

_FUNCTIONS: Final = (_OF_ONE - INPLACE_METHODS) | words(
    """
    add addmm baddbmm cat cumsum diag einsum empty_like full_like matmul ones_like rand_like
    randn_like sign stack tensordot tril triu zeros zeros_like
    """
)
"""Functions of ``torch`` that return one tensor; so does ``where`` with three arguments."""

_WHERE_ARGUMENTS: Final = 3

_OPERATORS: Final = (cst.Divide, cst.Subtract, cst.MatrixMultiply, cst.Power)
"""Operators that nothing but numbers and tensors have, of what a backward returns."""

_SHARED_OPERATORS: Final = (cst.Add, cst.Multiply)
"""Operators that tuples have too: with a tensor on either side the result is one."""


class GradientCount:
    """Count what one backward returns."""

    def __init__(self, scope: FunctionScope, cotangents: frozenset[str], scopes: Scopes) -> None:
        self._sources: Sources = sources_of(scope)
        self._augmented = augmented_names(scope)
        self._cotangents = cotangents
        self._scopes = scopes

    def of(self, node: cst.BaseExpression | None, seen: frozenset[str] = frozenset()) -> int | None:
        """Return how many gradients ``return node`` gives, or None if that can't be told.

        ``seen`` are the names that are being looked up.
        """
        if node is None or is_none(node):
            return 1
        if type(node) is cst.Tuple:
            is_open = any(type(element) is cst.StarredElement for element in node.elements)
            return None if is_open else len(node.elements)
        if type(node) is cst.IfExp:
            return _agreed([self.of(node.body, seen), self.of(node.orelse, seen)])
        if self._is_tensor(node):
            return 1
        if type(node) is cst.Name and node.value not in seen | self._augmented:
            deeper = seen | {node.value}
            sources = self._sources.get(node.value) or ()
            return _agreed([self.of(source, deeper) for source in sources])
        return None

    def _is_tensor(self, node: cst.BaseExpression, seen: frozenset[str] = frozenset()) -> bool:
        """Tell whether an expression is one tensor, or raises."""
        if type(node) is cst.BinaryOperation:
            sides = (node.left, node.right)
            is_shared = isinstance(node.operator, _SHARED_OPERATORS)
            return isinstance(node.operator, _OPERATORS) or (
                is_shared and any(self._is_tensor(side, seen) for side in sides)
            )
        if type(node) is cst.IfExp:
            return all(self._is_tensor(arm, seen) for arm in (node.body, node.orelse))
        if type(node) is cst.Call:
            return self._makes_one(node, seen)
        if type(node) is cst.Attribute:
            is_same = node.attr.value in VIEW_ATTRIBUTES or node.attr.value == "data"
            return is_same and self._is_tensor(node.value, seen)
        if type(node) is cst.Name:
            return self._holds_tensor(node.value, seen)
        return type(node) is cst.UnaryOperation

    def _holds_tensor(self, name: str, seen: frozenset[str]) -> bool:
        """Tell whether everything that a name is given is one tensor, or None."""
        if name in seen:
            return True  # `x = x.clone()`: a tensor if it was one before
        sources = self._sources.get(name, [] if name in self._cotangents else None)
        if sources is None or not (sources or name in self._cotangents):
            return False
        deeper = seen | {name}
        return all(is_none(source) or self._is_tensor(source, deeper) for source in sources)

    def _makes_one(self, node: cst.Call, seen: frozenset[str]) -> bool:
        func = node.func
        name = self._scopes.resolve_import(dotted_name(func) or "")
        if name is not None:
            package, _, last = name.rpartition(".")
            if package != "torch":
                return False
            return last in _FUNCTIONS or (last == "where" and len(node.args) == _WHERE_ARGUMENTS)
        return (
            type(func) is cst.Attribute
            and func.attr.value in _OF_ONE
            and self._is_tensor(func.value, seen)
        )


def _agreed(counts: Sequence[int | None]) -> int | None:
    """Return the count that all ways agree on."""
    return counts[0] if counts and len(set(counts)) == 1 else None
