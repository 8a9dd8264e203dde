"""Find weights that are moved forth and back along a vector, and not to where they were."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import libcst as cst

from gradcheck_lint.analyses.layers import called_function
from gradcheck_lint.analyses.object_uses import argument_for
from gradcheck_lint.analyses.settings import number
from gradcheck_lint.model.syntax import assigned_pairs, dotted_name, keyword, walk

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel, ModuleModel
    from gradcheck_lint.model.scopes import FunctionScope

__all__ = ["Displacement", "displacements"]


class Displacement(NamedTuple):
    """The last move of some weights along a vector, and how far they are then from the start."""

    node: cst.CSTNode
    first: cst.CSTNode
    rest: str


class _Move(NamedTuple):
    node: cst.CSTNode
    what: str
    factor: float
    unit: tuple[str, ...]


def displacements(function: FunctionModel) -> Iterator[Displacement]:
    """Yield each series of moves in both directions whose sum is not zero."""
    may_move = function.module.mentions(b".add_(", b".sub_(", b".data", b"no_grad")
    if not may_move or _COPYING & function.scope.words:
        return
    series: dict[tuple[str, tuple[str, ...]], list[_Move]] = {}
    for move in _moves(function):
        series.setdefault((move.what, move.unit), []).append(move)
    for (_, unit), moves in series.items():
        factors = [move.factor for move in moves]
        left = sum(factors)
        if left and min(factors) < 0 < max(factors):
            rest = " * ".join((f"{left:g}", *unit))
            yield Displacement(moves[-1].node, moves[0].node, rest)


_COPYING: Final = frozenset({"copy_", "load_state_dict", "vector_to_parameters"})


def _moves(function: FunctionModel) -> Iterator[_Move]:
    for node in function.scope.nodes_of(cst.For, cst.Call):
        if type(node) is cst.For:
            for place, name, vector, factor in _written(node):
                product = _product(factor, vector)
                if product is not None:
                    text = function.module.text(node.iter)
                    yield _Move(place, f"{text} {name} {vector}", *product)
        elif type(node) is cst.Call:
            yield from _by_call(node, function)


def _by_call(call: cst.Call, function: FunctionModel) -> Iterator[_Move]:
    """Yield the move of a function of the file that is given how far: ``perturb(params, -2)``."""
    scope = called_function(call, function)
    scale = None if scope is None else _scale_of(scope, function.module)
    if scope is None or scale is None:
        return
    given = argument_for(scale, call, scope)
    product = None if given is None else _product(given, None)
    if product is not None:
        text = function.module.text
        others = [text(each.value) for each in call.args if each.value is not given]
        yield _Move(call, " ".join((scope.name, *others)), *product)


def _scale_of(scope: FunctionScope, module: ModuleModel) -> str | None:
    """Return the parameter of a function by which it multiplies what it adds to weights."""
    key = (_scale_of, id(scope))
    if key not in module.memo:
        module.memo[key] = _look_for_scale(scope)
    scale: str | None = module.memo[key]
    return scale


def _look_for_scale(scope: FunctionScope) -> str | None:
    for node in scope.nodes_of(cst.For):
        for _, _, _, factor in _written(node):
            names = {dotted_name(each) for each in walk(factor)}
            found = names & scope.parameters
            if found:
                return min(found, key=str)
    return None


def _written(loop: cst.For) -> Iterator[tuple[cst.CSTNode, str, str | None, cst.BaseExpression]]:
    """Yield where a loop adds to its own elements, to which, along what, and how far."""
    names = {each.value for each in walk(loop.target) if type(each) is cst.Name}
    for node in walk(loop.body):
        if type(node) is cst.Call and type(node.func) is cst.Attribute:
            name = (dotted_name(node.func.value) or "").removesuffix(".data")
            if name not in names or node.func.attr.value not in {"add_", "sub_"} or not node.args:
                continue
            is_back = node.func.attr.value == "sub_"
            alpha = keyword(node, "alpha")
            moved = node.args[0].value
            if alpha is not None:
                yield node, name, dotted_name(moved), _signed(alpha, is_back=is_back)
            else:
                yield node, name, _vector(moved, names), _signed(moved, is_back=is_back)
        elif type(node) is cst.AugAssign:
            name = (dotted_name(node.target) or "").removesuffix(".data")
            is_back = type(node.operator) is cst.SubtractAssign
            if name in names and (is_back or type(node.operator) is cst.AddAssign):
                yield node, name, _vector(node.value, names), _signed(node.value, is_back=is_back)
        for target, value in assigned_pairs(node):
            path = dotted_name(target) or ""
            if not path.endswith(".data") or type(value) is not cst.BinaryOperation:
                continue
            is_back = type(value.operator) is cst.Subtract
            is_own = (dotted_name(value.left) or "").removesuffix(".data") == path[:-5]
            if is_own and (is_back or type(value.operator) is cst.Add):
                yield (
                    node,
                    path[:-5],
                    _vector(value.right, names),
                    _signed(value.right, is_back=is_back),
                )


def _signed(node: cst.BaseExpression, *, is_back: bool) -> cst.BaseExpression:
    return cst.UnaryOperation(cst.Minus(), node) if is_back else node


def _vector(node: cst.BaseExpression, names: set[str]) -> str | None:
    """Return the element of the loop that a product has as a factor, or another tensor in it."""
    found = [dotted_name(each) for each in _factors(node)]
    own = [name for name in found if name in names]
    return own[0] if own else (found[-1] if found else None)


def _factors(node: cst.BaseExpression) -> list[cst.BaseExpression]:
    if type(node) is cst.BinaryOperation and type(node.operator) is cst.Multiply:
        return [*_factors(node.left), *_factors(node.right)]
    return [node]


def _product(node: cst.BaseExpression, vector: str | None) -> tuple[float, tuple[str, ...]] | None:
    """Return a product as a number and the names in it, without the vector; None for others."""
    value, names = 1.0, list[str]()
    waiting = [node]
    while waiting:
        each = waiting.pop()
        if type(each) is cst.UnaryOperation and type(each.operator) is cst.Minus:
            value = -value
            waiting.append(each.expression)
        elif type(each) is cst.BinaryOperation and type(each.operator) is cst.Multiply:
            waiting += [each.left, each.right]
        elif (known := number(each)) is not None:
            value *= known
        elif (name := dotted_name(each)) is not None:
            names.append(name)
        else:
            return None
    if vector in names:
        names.remove(vector)
    return value, tuple(sorted(names))
