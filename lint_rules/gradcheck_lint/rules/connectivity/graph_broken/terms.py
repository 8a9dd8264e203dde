"""Find what is added to a loss and has no graph."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

import libcst as cst

from gradcheck_lint.model.knowledge import SAME_GRAPH_METHODS, TENSOR_METHODS
from gradcheck_lint.model.syntax import (
    ASSIGNING,
    assigned_once,
    boolean,
    bound_names,
    dotted_name,
    is_literal,
    keyword,
    last_word,
    positional,
)
from gradcheck_lint.model.values import NOTHING, Kind, Origin, Values, all_are, cut_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.flow import Backward
    from gradcheck_lint.model.module import FunctionModel


class LostTerm(NamedTuple):
    """A term of a loss that is constant as a whole.

    Attributes:
        term: the term, as it stands in the sum.
        cut: what took its graph away.
        is_added: whether it is added to the loss as it is, weighed at most.
    """

    term: cst.CSTNode
    cut: cst.CSTNode
    is_added: bool


def lost_terms(function: FunctionModel, backward: Backward) -> Iterator[LostTerm]:
    """Yield each term that is constant as a whole, and what took its graph away.

    A constant that a term with a graph is multiplied with, or compared with, is no term. Nor is a
    number what a target is made of: it counts where it is added to the loss as it is.
    """
    node = backward.node
    if type(node) is not cst.Call:
        return
    receiver = node.func.value if type(node.func) is cst.Attribute else None
    given = positional(node)
    start = given[0] if backward.by_engine and given else receiver
    if start is not None:
        yield from terms_without_graph(function, start, node)


def terms_without_graph(
    function: FunctionModel, start: cst.BaseExpression, at: cst.CSTNode
) -> Iterator[LostTerm]:
    """Yield each constant term of the sum that is at ``start``, as it stands ``at`` some place."""
    # A term, and whether it is added to the loss as it is.
    waiting: list[tuple[cst.BaseExpression, bool]] = [(start, True)]
    seen: set[str] = set()
    assigned = _assigned(function)
    here = _place_of(at, function)
    while waiting:
        term, is_added = waiting.pop()
        name = dotted_name(term)
        cut = _what_cut(term, name, function)
        if cut is None and is_added and term is not start:
            cut = _made_number(name, function)
        below: list[cst.BaseExpression] = []
        if cut is not None:
            yield LostTerm(term, cut, is_added and term is not start)
        elif name is not None:
            if name not in seen:
                seen.add(name)
                waiting += [
                    (each, is_added and place < here) for each, place in assigned.get(name, ())
                ]
        elif type(term) is cst.BinaryOperation:
            if isinstance(term.operator, (cst.Add, cst.Subtract)):
                below += [term.left, term.right]
                found = _items_beside_tensor(term, function) if is_added else ()
                yield from (LostTerm(item, item, is_added) for item in found)
            elif isinstance(term.operator, (cst.Multiply, cst.Divide)):
                below += _only_factor(term, function)
        elif type(term) is cst.UnaryOperation:
            below.append(term.expression)
        elif _keeps_graph(term):
            assert type(term) is cst.Call
            assert type(term.func) is cst.Attribute
            below.append(term.func.value)
            is_added = False
        waiting += [(each, is_added) for each in below]


def is_gradient(node: cst.CSTNode, function: FunctionModel) -> bool:
    """Tell whether this is a call of ``torch.autograd.grad``."""
    if type(node) is not cst.Call:
        return False
    name = function.module.scopes.resolve_import(dotted_name(node.func) or "")
    return name == "torch.autograd.grad"


def keeps_no_graph(call: cst.Call) -> bool:
    """Tell whether a call of ``torch.autograd.grad`` surely returns gradients without a graph."""
    asked = keyword(call, "create_graph")
    is_plain = asked is None or boolean(asked) is False
    # The fifth in its place is create_graph.
    is_plain &= len(positional(call)) <= _BEFORE_CREATE_GRAPH
    return is_plain and not any(each.star for each in call.args)


def _gradient_within(term: cst.BaseExpression, function: FunctionModel) -> cst.Call | None:
    """Return the call of ``torch.autograd.grad`` that a term is made of, with numbers alone.

    As in ``(grad(out, x)[0].norm(2, dim=1) - 1) ** 2``; None if that has a graph, or may have.
    """
    while True:
        if is_gradient(term, function):
            assert type(term) is cst.Call
            return term if keeps_no_graph(term) else None
        if type(term) is cst.Subscript:
            term = term.value
        elif type(term) is cst.UnaryOperation:
            term = term.expression
        elif type(term) is cst.BinaryOperation:
            left, right = map(_is_number, (term.left, term.right))
            if left == right:
                return None
            term = term.right if left else term.left
        elif type(term) is cst.Call and type(term.func) is cst.Attribute:
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


def _assigned(function: FunctionModel) -> dict[str, list[tuple[cst.BaseExpression, int]]]:
    """Return what is assigned or added to each name, and its place among the nodes."""
    known: dict[str, list[tuple[cst.BaseExpression, int]]] | None = function.memo.get(_assigned)
    if known is None:
        known = function.memo[_assigned] = {}
        for place, node in enumerate(function.scope.nodes):
            if type(node) in ASSIGNING:
                target, value = assigned_once(node)
            elif type(node) is cst.AugAssign and type(node.operator) in _ADDING:
                target, value = node.target, node.value
            else:
                continue
            name = dotted_name(target)
            if name is not None and value is not None:
                known.setdefault(name, []).append((value, place))
    return known


def _place_of(node: cst.CSTNode, function: FunctionModel) -> int:
    """Return the place of a node among those of a function, one behind all others for the rest."""
    places: dict[int, int] | None = function.memo.get(_place_of)
    if places is None:
        nodes = enumerate(function.scope.nodes)
        places = function.memo[_place_of] = {id(known): place for place, known in nodes}
    return places.get(id(node), len(places))


def _what_cut(
    term: cst.BaseExpression, name: str | None, function: FunctionModel
) -> cst.CSTNode | None:
    """Return what took the graph of a term away, if it never has one, whatever its parts."""
    key = (_what_cut, id(term))
    if key not in function.memo:
        function.memo[key] = _look_for_cut(term, name, function)
    cut: cst.CSTNode | None = function.memo[key]
    return cut


def _look_for_cut(
    term: cst.BaseExpression, name: str | None, function: FunctionModel
) -> cst.CSTNode | None:
    gradient = _gradient_within(term, function)
    if gradient is not None:
        return gradient
    if name is not None:
        values = function.bindings.get(name, NOTHING)
    else:
        values = _returned_by(term, function)
    if not values and type(term) is cst.Call:
        return _cut_within(term, function)
    return cut_of(values) if all_are(values, Kind.PLAIN) else None


def _cut_within(term: cst.BaseExpression, function: FunctionModel) -> cst.CSTNode | None:
    """Return what cut the first part of a term, if all that it is computed of has no graph."""
    cut: cst.CSTNode | None = None
    waiting: list[cst.BaseExpression] = [term]
    while waiting:
        node = waiting.pop()
        name = dotted_name(node)
        if is_cut_parameter(node, function):
            cut = node
        elif name is not None:
            values = function.bindings.get(name, NOTHING)
            if not all_are(values, Kind.PLAIN, Kind.NUMBER):
                return None
            cut = cut_of(values) or cut
        elif is_detach(node):
            cut = node
        elif type(node) is cst.Call and _is_computation(node, function):
            waiting += [each.value for each in node.args if not is_literal(each.value)]
            if type(node.func) is cst.Attribute and _is_method(node, function):
                waiting.append(node.func.value)
        elif type(node) is cst.BinaryOperation:
            waiting += [node.left, node.right]
        elif type(node) is cst.UnaryOperation:
            waiting.append(node.expression)
        elif type(node) in {cst.GeneratorExp, cst.ListComp}:
            waiting.append(node.elt)  # type: ignore[attr-defined]
        elif not is_literal(node) and boolean(node) is None:
            return None
    return cut


def _is_computation(node: cst.Call, function: FunctionModel) -> bool:
    """Return whether a function of torch is called, a method that a tensor has, or ``sum``."""
    if _is_method(node, function) or dotted_name(node.func) == "sum":
        return True
    name = function.module.scopes.resolve_import(dotted_name(node.func) or "") or ""
    return name.startswith("torch.")


def _is_method(node: cst.Call, function: FunctionModel) -> bool:
    return (
        type(node.func) is cst.Attribute
        and node.func.attr.value in TENSOR_METHODS | SAME_GRAPH_METHODS
        and function.module.scopes.resolve_import(dotted_name(node.func) or "") is None
    )


def is_detach(node: cst.CSTNode) -> bool:
    """Tell whether this is a call of ``x.detach()``."""
    return (
        type(node) is cst.Call
        and type(node.func) is cst.Attribute
        and node.func.attr.value == "detach"
    )


def is_cut_parameter(node: cst.CSTNode, function: FunctionModel) -> bool:
    """Tell whether this is ``layer.weight.data``, or ``p.data`` of one of ``parameters()``."""
    if type(node) is not cst.Attribute or node.attr.value != "data":
        return False
    name = dotted_name(node.value)
    scope = function.scope
    loops: list[cst.For | cst.CompFor] = [*scope.nodes_of(cst.For), *scope.nodes_of(cst.CompFor)]
    return last_word(name) in {"weight", "bias"} or any(
        name in set(bound_names(loop.target)) and _GIVING.search(function.module.text(loop.iter))
        for loop in loops
    )


_GIVING: Final = re.compile(r"\bparameters\(|\bnamed_parameters\(|params\b")


def _made_number(name: str | None, function: FunctionModel) -> cst.CSTNode | None:
    """Return the ``item()`` that made a number of what a name stands for, whatever the path."""
    values = NOTHING if name is None else function.bindings.get(name, NOTHING)
    cut = cut_of(values) if all_are(values, Kind.NUMBER) else None
    return cut if is_item(cut) else None


def _items_beside_tensor(
    total: cst.BinaryOperation, function: FunctionModel
) -> Iterator[cst.CSTNode]:
    """Yield ``b.item()`` of ``a + w * b.item()`` if ``b`` was computed, and ``a`` is no number."""
    items = [_item_of(side, function) for side in (total.left, total.right)]
    found = [item for item in items if item is not None]
    if len(found) != 1:
        return
    (item,) = found
    assert type(item.func) is cst.Attribute
    name = dotted_name(item.func.value)
    held = _returned_by(item.func.value, function)
    if name is not None:
        held = function.bindings.get(name, NOTHING)
    if held and all(value.through or value.kind is Kind.HISTORY for value in held):
        yield item


def _item_of(side: cst.BaseExpression, function: FunctionModel) -> cst.Call | None:
    """Return ``b.item()`` where a side of a sum is that, or so many times that."""
    while type(side) is cst.BinaryOperation and type(side.operator) is cst.Multiply:
        factors = _only_factor(side, function)
        if not factors:
            return None
        (side,) = factors
    return side if type(side) is cst.Call and is_item(side) else None


def is_item(node: cst.CSTNode | None) -> bool:
    """Tell whether this is a call of ``x.item()``."""
    return (
        type(node) is cst.Call
        and type(node.func) is cst.Attribute
        and node.func.attr.value == "item"
    )


def _returned_by(node: cst.BaseExpression, function: FunctionModel) -> Values:
    """Return what a call of a function of this file returns."""
    call = function.call_at(node)
    return NOTHING if call is None else call.result


def _only_factor(product: cst.BinaryOperation, function: FunctionModel) -> list[cst.BaseExpression]:
    """Return the factor of a product whose other factor is a number or a setting."""
    left, right = product.left, product.right
    if _is_weight(left, function):
        return [right]
    return [left] if _is_weight(right, function) else []


def _is_weight(node: cst.BaseExpression, function: FunctionModel) -> bool:
    """Tell whether this is a number, or a setting by its name, or is computed of those alone.

    No call is given it: a loss that is weighed by its gradients is handed to what computes them.
    """
    if isinstance(node, (cst.Integer, cst.Float)):
        return True
    if type(node) is cst.BinaryOperation:
        return _is_weight(node.left, function) and _is_weight(node.right, function)
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
        for node in function.scope.nodes_of(cst.Call)
        for argument in node.args
    }


def _keeps_graph(node: cst.BaseExpression) -> bool:
    return (
        type(node) is cst.Call
        and type(node.func) is cst.Attribute
        and node.func.attr.value in SAME_GRAPH_METHODS
    )
