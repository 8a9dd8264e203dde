"""Find roots whose derivative is infinite: of distances to oneself, of variances and squares."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import libcst as cst

from gradcheck_lint.model.function_class import assignments
from gradcheck_lint.model.scopes import Part
from gradcheck_lint.model.syntax import dotted_name, integer, is_none, positional, walk

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gradcheck_lint.model.module import FunctionModel, ModuleModel

__all__ = [
    "guard_of_steps",
    "is_differentiated",
    "resolved",
    "roots_of_own_distances",
    "roots_of_squares",
]

_SQUARE: Final = 2


def roots_of_own_distances(function: FunctionModel) -> Iterator[tuple[cst.CSTNode, str]]:
    """Yield ``((x[:, None] - x) ** 2).sum(-1).sqrt()`` and the name of the points.

    Each point is compared with itself as well: the sum is zero there.
    """
    bound = assignments(function.scope)
    for node in function.scope.nodes:
        if type(node) is not cst.Call and type(node) is not cst.BinaryOperation:
            continue
        squares = _summed(resolved(_under_root(node), bound))
        difference = resolved(_squared(resolved(squares, bound)), bound)
        points = _points(difference)
        if points is not None:
            yield node, points


def roots_of_squares(function: FunctionModel) -> Iterator[cst.CSTNode]:
    """Yield the roots of variances and of sums of squares that nothing keeps away from zero."""
    bound = assignments(function.scope)
    for node in function.scope.nodes:
        if type(node) is not cst.Call and type(node) is not cst.BinaryOperation:
            continue
        under = resolved(_under_root(node), bound)
        if under is None or _is_cut(under):
            continue
        if _method(under)[0] == "var" or _is_sum_of_squares(under, bound):
            yield node


def _is_sum_of_squares(
    node: cst.BaseExpression, bound: dict[str, list[cst.BaseExpression]]
) -> bool:
    """Return whether squares are summed up here: by ``sum()``, by ``+`` or a matrix product."""
    if type(node) is cst.BinaryOperation and type(node.operator) is cst.Add:
        sides = (resolved(side, bound) for side in (node.left, node.right))
        return all(
            side is not None and (_is_square(side) or _is_sum_of_squares(side, bound))
            for side in sides
        )
    weighted = _weighted(node)
    if weighted:
        sides = (resolved(side, bound) for side in weighted)
        return any(side is not None and _is_sum_of_squares(side, bound) for side in sides)
    squares = resolved(_summed(node), bound)
    return squares is not None and _is_square(squares)


def _weighted(node: cst.BaseExpression) -> Sequence[cst.BaseExpression]:
    """Return the factors of a matrix product."""
    if type(node) is cst.BinaryOperation and type(node.operator) is cst.MatrixMultiply:
        return node.left, node.right
    name, operands = _method(node)
    return operands if name in {"matmul", "mm", "bmm"} else ()


def _is_cut(node: cst.BaseExpression) -> bool:
    return any(type(each) is cst.Name and each.value in {"detach", "data"} for each in walk(node))


def _is_square(node: cst.BaseExpression) -> bool:
    """Return whether this is ``x ** 2``, ``x.pow(2)``, ``x.square()`` or ``x * x``."""
    if type(node) is cst.BinaryOperation and type(node.operator) is cst.Multiply:
        return node.left.deep_equals(node.right)
    return _squared(node) is not None


def is_differentiated(function: FunctionModel) -> bool:
    """Tell whether what a function computes is differentiated, by where it stands or is called."""
    scopes = function.module.scopes
    waiting, seen = [function.scope], set[int]()
    while waiting:
        scope = waiting.pop()
        own = scope.name.rpartition(".")[2]
        is_forward = own == "forward" and scopes.derives_from(scope.owner, "torch.nn.")
        if is_forward or Part.BACKWARD in scope.parts or "loss" in own.lower():
            return True
        if id(scope) not in seen and len(seen) < _MOST_CALLERS and not own.startswith("__"):
            seen.add(id(scope))
            waiting += [other for other in scopes.functions if own in other.words]
    return False


_MOST_CALLERS: Final = 20


def guard_of_steps(module: ModuleModel) -> cst.BaseExpression | None:
    """Return a test, after a backward, that leaves a step out where something is not finite."""
    key = "guard of steps"
    if key not in module.memo:
        module.memo[key] = next(_guards(module), None) if module.mentions(*_TESTS) else None
    guard: cst.BaseExpression | None = module.memo[key]
    return guard


_TESTS: Final = (b"isfinite", b"isnan", b"isinf")


def _guards(module: ModuleModel) -> Iterator[cst.BaseExpression]:
    for scope in module.scopes.functions:
        if scope.linked or Part.BACKWARD not in scope.parts:
            continue
        has_gradients = False
        for node in scope.nodes_of(cst.Call, cst.If):
            if type(node) is cst.If:
                if has_gradients and _leaves_out(node):
                    yield node.test
            elif type(node) is cst.Call and "backward" in _method(node)[0]:
                has_gradients = True


def _leaves_out(node: cst.If) -> bool:
    """Return whether a test of finiteness decides whether a step is made, and nothing is raised."""
    tests = {test.decode() for test in _TESTS}
    if not any(type(each) is cst.Name and each.value in tests for each in walk(node.test)):
        return False
    inside = list(walk(node.body))
    if any(type(each) is cst.Raise for each in inside):
        return False
    return any(
        isinstance(each, (cst.Continue, cst.Return))
        or (type(each) is cst.Attribute and each.attr.value == "step")
        for each in inside
    )


def resolved(
    node: cst.BaseExpression | None, bound: dict[str, list[cst.BaseExpression]]
) -> cst.BaseExpression | None:
    """Return what a name was given, if only one thing."""
    sources = bound.get(node.value, []) if type(node) is cst.Name else []
    return sources[0] if len(sources) == 1 else node


def _method(node: cst.BaseExpression | None) -> tuple[str, list[cst.BaseExpression]]:
    """Return the name of what is called, and its operands, whether by method or by function."""
    if type(node) is not cst.Call:
        return "", []
    handed = positional(node)
    if type(node.func) is not cst.Attribute:
        return dotted_name(node.func) or "", handed
    is_function = dotted_name(node.func.value) == "torch"
    return node.func.attr.value, handed if is_function else [node.func.value, *handed]


def _under_root(node: cst.CSTNode) -> cst.BaseExpression | None:
    if type(node) is cst.BinaryOperation and type(node.operator) is cst.Power:
        return node.left if _is_half(node.right) else None
    name, operands = _method(node) if type(node) is cst.Call else ("", [])
    if name == "sqrt" and len(operands) == 1:
        return operands[0]
    return operands[0] if name == "pow" and operands and _is_half(operands[-1]) else None


def _is_half(node: cst.BaseExpression) -> bool:
    return type(node) is cst.Float and float(node.value) == 0.5  # noqa: PLR2004 - a root


def _summed(node: cst.BaseExpression | None) -> cst.BaseExpression | None:
    name, operands = _method(node)
    return operands[0] if name in {"sum", "mean"} and operands else None


def _squared(node: cst.BaseExpression | None) -> cst.BaseExpression | None:
    if type(node) is cst.BinaryOperation and type(node.operator) is cst.Power:
        return node.left if integer(node.right) == _SQUARE else None
    name, operands = _method(node)
    if not operands:
        return None
    is_square = name == "square" or (name == "pow" and integer(operands[-1]) == _SQUARE)
    return operands[0] if is_square else None


def _points(node: cst.BaseExpression | None) -> str | None:
    """Return the one name that both sides of a difference are, in different shapes."""
    if type(node) is not cst.BinaryOperation or type(node.operator) is not cst.Subtract:
        return None
    left, right = _reshaped(node.left), _reshaped(node.right)
    if left is None or left != right or node.left.deep_equals(node.right):
        return None
    return left


def _reshaped(node: cst.BaseExpression) -> str | None:
    """Return the name of a tensor that is given more dimensions, by None or ``unsqueeze``."""
    if type(node) is cst.Subscript:
        whole = all(_is_whole(element.slice) for element in node.slice)
        return dotted_name(node.value) if whole else None
    name, operands = _method(node)
    if name == "unsqueeze" and operands:
        return dotted_name(operands[0])
    return dotted_name(node)


def _is_whole(index: cst.BaseSlice) -> bool:
    """Tell whether an index takes all of a dimension, or adds one."""
    if type(index) is cst.Slice:
        return index.lower is None and index.upper is None and index.step is None
    value = index.value if type(index) is cst.Index else None
    return type(value) is cst.Ellipsis or is_none(value)
