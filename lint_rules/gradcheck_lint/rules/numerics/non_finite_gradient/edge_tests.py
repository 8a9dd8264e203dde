"""Tell whether a comparison separates a tensor from the edge of a function's domain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import libcst as cst

from gradcheck_lint.model.syntax import dotted_name, positional

if TYPE_CHECKING:
    from collections.abc import Callable

_NEAR: Final = 0.01
"""How far from an edge people put what keeps away from it."""

_EDGES: Final = (0.0, 1.0, -1.0)
"""Where roots, logarithms and inverse sines have an infinite derivative."""

_OPERATORS: Final[dict[type[cst.BaseCompOp], str]] = {
    cst.Equal: "eq",
    cst.GreaterThan: "gt",
    cst.GreaterThanEqual: "ge",
    cst.LessThan: "lt",
    cst.LessThanEqual: "le",
    cst.NotEqual: "ne",
}
_MIRRORED: Final = {"gt": "lt", "ge": "le", "lt": "gt", "le": "ge", "eq": "eq", "ne": "ne"}
_HOLDS: Final[dict[str, Callable[[float, float], bool]]] = {
    "eq": lambda left, right: left == right,
    "ge": lambda left, right: left >= right,
    "gt": lambda left, right: left > right,
    "le": lambda left, right: left <= right,
    "lt": lambda left, right: left < right,
    "ne": lambda left, right: left != right,
}


@dataclass(frozen=True, slots=True)
class EdgeTest:
    """``operand <operator> limit``, the operator as torch names it."""

    operand: cst.BaseExpression
    operator: str
    limit: cst.BaseExpression

    def drops_edge(self, *, is_taken: bool) -> bool:
        """Tell whether an edge, or what is beyond it, is in the branch that is not chosen.

        ``is_taken`` says whether the branch is chosen where the test holds. A limit without a
        number is taken for a small one.
        """
        limit = number(self.limit)
        if limit is None:
            if dotted_name(self.limit) is None and type(self.limit) is not cst.Attribute:
                return False
            limit = _NEAR / 2
        edge = next((edge for edge in _EDGES if abs(limit - edge) <= _NEAR), None)
        if edge is None:
            return False
        if edge != 0:
            return True
        holds = _HOLDS[self.operator]
        return any(holds(place, limit) is not is_taken for place in (edge, edge - 1))


def comparison_of(test: cst.BaseExpression) -> EdgeTest | None:
    """Return what ``x > 0``, ``0 < x`` and ``x.gt(0)`` compare; None for anything else."""
    if type(test) is cst.Comparison:
        only = test.comparisons[0]
        operator = _OPERATORS.get(type(only.operator))
        if len(test.comparisons) != 1 or operator is None:
            return None
        if number(test.left) is not None:
            return EdgeTest(only.comparator, _MIRRORED[operator], test.left)
        return EdgeTest(test.left, operator, only.comparator)
    if type(test) is not cst.Call or type(test.func) is not cst.Attribute:
        return None
    operator, handed = test.func.attr.value, positional(test)
    if operator not in _HOLDS or not handed:
        return None
    operand = handed[0] if len(handed) > 1 else test.func.value
    return EdgeTest(operand, operator, handed[-1])


def number(node: cst.BaseExpression) -> float | None:
    """Return the number that stands in the source, None for anything else."""
    if type(node) is cst.UnaryOperation and type(node.operator) is cst.Minus:
        inner = number(node.expression)
        return None if inner is None else -inner
    if type(node) is cst.Float:
        return float(node.value)
    return float(int(node.value, 0)) if type(node) is cst.Integer else None
