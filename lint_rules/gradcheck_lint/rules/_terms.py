"""Find what is added to a loss and has no graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from gradcheck_lint.model.flow import Call
from gradcheck_lint.model.knowledge import SAME_GRAPH_METHODS
from gradcheck_lint.model.syntax import (
    ASSIGNING,
    assigned_once,
    boolean,
    dotted_name,
    is_literal,
    keyword,
    positional,
)
from gradcheck_lint.model.values import NOTHING, Kind, Origin, Values, all_are, cut_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.flow import Backward
    from gradcheck_lint.model.module import FunctionModel


def lost_terms(function: FunctionModel, backward: Backward) -> Iterator[cst.CSTNode]:
    """Yield what took the graph of a term away, for each term that is constant as a whole.

    A constant that a term with a graph is multiplied with, or compared with, is no term.
    """
    node = backward.node
    if not isinstance(node, cst.Call):
        return
    receiver = node.func.value if isinstance(node.func, cst.Attribute) else None
    given = positional(node)
    waiting: list[cst.BaseExpression] = [receiver] if receiver is not None else []
    if backward.by_engine and given:
        waiting = [given[0]]
    seen: set[str] = set()
    assigned = _assigned(function)
    while waiting:
        term = waiting.pop()
        name = dotted_name(term)
        cut = _what_cut(term, name, function)
        if cut is not None:
            yield cut
        elif name is not None:
            if name not in seen:
                seen.add(name)
                waiting.extend(assigned.get(name, ()))
        elif isinstance(term, cst.BinaryOperation):
            if isinstance(term.operator, (cst.Add, cst.Subtract)):
                waiting += [term.left, term.right]
            elif isinstance(term.operator, (cst.Multiply, cst.Divide)):
                waiting += _only_factor(term, function)
        elif isinstance(term, cst.UnaryOperation):
            waiting.append(term.expression)
        elif _keeps_graph(term):
            assert isinstance(term, cst.Call)
            assert isinstance(term.func, cst.Attribute)
            waiting.append(term.func.value)


def is_gradient(node: cst.CSTNode, function: FunctionModel) -> bool:
    """Tell whether this is a call of ``torch.autograd.grad``."""
    if not isinstance(node, cst.Call):
        return False
    name = function.module.scopes.resolve_import(dotted_name(node.func) or "")
    return name == "torch.autograd.grad"


def _gradient_within(term: cst.BaseExpression, function: FunctionModel) -> cst.Call | None:
    """Return the call of ``torch.autograd.grad`` that a term is made of, with numbers alone.

    As in ``(grad(out, x)[0].norm(2, dim=1) - 1) ** 2``; None if that has a graph, or may have.
    """
    while True:
        if is_gradient(term, function):
            assert isinstance(term, cst.Call)
            asked = keyword(term, "create_graph")
            is_plain = asked is None or boolean(asked) is False
            # The fifth in its place is create_graph.
            is_plain &= len(positional(term)) <= _BEFORE_CREATE_GRAPH
            return term if is_plain and not any(each.star for each in term.args) else None
        if isinstance(term, cst.Subscript):
            term = term.value
        elif isinstance(term, cst.UnaryOperation):
            term = term.expression
        elif isinstance(term, cst.BinaryOperation):
            left, right = map(_is_number, (term.left, term.right))
            if left == right:
                return None
            term = term.right if left else term.left
        elif isinstance(term, cst.Call) and isinstance(term.func, cst.Attribute):
            if not all(_is_number(argument.value) for argument in term.args):
                return None
            term = term.func.value
        else:
            return None


def _is_number(node: cst.BaseExpression) -> bool:
    """Tell whether this is written out: a literal, or a tuple or list of them."""
    if isinstance(node, (cst.Tuple, cst.List)):
        return all(_is_number(element.value) for element in node.elements)
    return is_literal(node)


_BEFORE_CREATE_GRAPH = 4
_ADDING = frozenset({cst.AddAssign, cst.SubtractAssign})


def _assigned(function: FunctionModel) -> dict[str, list[cst.BaseExpression]]:
    """Return what is assigned or added to each name."""
    found: dict[str, list[cst.BaseExpression]] = {}
    for node in function.scope.nodes:
        if type(node) in ASSIGNING:
            target, value = assigned_once(node)
        elif type(node) is cst.AugAssign and type(node.operator) in _ADDING:
            target, value = node.target, node.value
        else:
            continue
        name = dotted_name(target)
        if name is not None and value is not None:
            found.setdefault(name, []).append(value)
    return found


def _what_cut(
    term: cst.BaseExpression, name: str | None, function: FunctionModel
) -> cst.CSTNode | None:
    """Return what took the graph of a term away, if it never has one, whatever its parts."""
    gradient = _gradient_within(term, function)
    if gradient is not None:
        return gradient
    if name is not None:
        values = function.bindings.get(name, NOTHING)
    else:
        values = _returned_by(term, function)
    return cut_of(values) if all_are(values, Kind.PLAIN) else None


def _returned_by(node: cst.BaseExpression, function: FunctionModel) -> Values:
    """Return what a call of a function of this file returns."""
    calls = (event for event in function.events() if isinstance(event, Call) and event.node is node)
    return next((call.result for call in calls), NOTHING)


def _only_factor(product: cst.BinaryOperation, function: FunctionModel) -> list[cst.BaseExpression]:
    """Return the factor of a product whose other factor is a number or a setting."""
    left, right = product.left, product.right
    if _is_weight(left, function):
        return [right]
    return [left] if _is_weight(right, function) else []


def _is_weight(node: cst.BaseExpression, function: FunctionModel) -> bool:
    """Tell whether this is a number, or a setting by its name, which no call is given.

    A loss that is weighed by its gradients is handed to what computes them.
    """
    if isinstance(node, (cst.Integer, cst.Float)):
        return True
    name = dotted_name(node)
    if name is None or "loss" in name or name in _handed(function):
        return False
    held = function.bindings.get(name, NOTHING)
    return all(
        value.kind is Kind.NUMBER
        or (
            value.kind is Kind.UNKNOWN
            and value.origin in {Origin.ARGUMENT, Origin.ATTRIBUTE}
            and not value.through
        )
        for value in held
    )


def _handed(function: FunctionModel) -> set[str | None]:
    """Return the names that calls in a function are given."""
    return {
        dotted_name(argument.value)
        for node in function.scope.nodes
        if type(node) is cst.Call
        for argument in node.args
    }


def _keeps_graph(node: cst.BaseExpression) -> bool:
    return (
        isinstance(node, cst.Call)
        and isinstance(node.func, cst.Attribute)
        and node.func.attr.value in SAME_GRAPH_METHODS
    )
