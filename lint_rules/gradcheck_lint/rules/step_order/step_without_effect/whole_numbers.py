"""Find learning rates that are multiplied by a quotient of whole numbers, which begins with 0."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from gradcheck_lint.model.name_sources import sources_of
from gradcheck_lint.model.syntax import assigned_pairs, dotted_name, positional, string_index
from gradcheck_lint.rules._rule import Violation
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel

__all__ = ["whole_rates"]


def whole_rates(function: FunctionModel) -> Iterator[Violation]:
    """Yield every ``group["lr"] = base * (step // steps)``, and what LambdaLR is given like it."""
    if function.scope.words.isdisjoint({"param_groups", "group", "LambdaLR"}):
        return
    for node in function.scope.nodes:
        for rate in _rates(node, function):
            if _has_whole_factor(rate, function, 0):
                yield Violation(
                    node,
                    "the learning rate is multiplied by a quotient of whole numbers (`//`), which "
                    "is 0 until the whole divisor is reached: no step changes anything before",
                    Severity.WARNING,
                    "divide by `/`",
                )


def _rates(node: cst.CSTNode, function: FunctionModel) -> Iterator[cst.BaseExpression]:
    """Yield what the learning rate, or a factor of it, is set to."""
    for target, value in assigned_pairs(node):
        if type(target) is cst.Subscript and string_index(target) == "lr":
            yield value
    if type(node) is cst.Call:
        name = function.module.scopes.resolve_import(dotted_name(node.func) or "") or ""
        given = positional(node)
        made = given[1] if len(given) > 1 and name.endswith("lr_scheduler.LambdaLR") else None
        if type(made) is cst.Lambda:
            yield made.body


def _has_whole_factor(node: cst.BaseExpression, function: FunctionModel, depth: int) -> bool:
    """Return whether a product, or the least of some numbers, has a factor ``a // b``.

    An exponent, as in ``0.1 ** (epoch // 30)``, and a term of a sum are none.
    """
    if type(node) is cst.BinaryOperation:
        if type(node.operator) is cst.FloorDivide:
            return True
        if isinstance(node.operator, (cst.Multiply, cst.Divide)):
            sides = [node.left, *([node.right] if type(node.operator) is cst.Multiply else [])]
            return any(_has_whole_factor(side, function, depth) for side in sides)
        return False
    if type(node) is cst.Call and dotted_name(node.func) in {"min", "float"}:
        return any(_has_whole_factor(each, function, depth) for each in positional(node))
    sources = sources_of(function.scope).get(node.value) if type(node) is cst.Name else None
    if sources is None or len(sources) != 1 or depth:
        return False
    return _has_whole_factor(sources[0], function, depth + 1)
