"""GCS407: .grad of an intermediate."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import libcst as cst

from gradcheck_lint.model.flow import Backward
from gradcheck_lint.model.forward import is_named_as_model
from gradcheck_lint.model.knowledge import MAYBE_ITSELF_METHODS
from gradcheck_lint.model.name_sources import sources_of
from gradcheck_lint.model.scopes import Part
from gradcheck_lint.model.syntax import (
    boolean,
    dotted_name,
    is_none,
    keyword,
    last_word,
    positional,
    small_statements,
    walk,
)
from gradcheck_lint.model.values import NOTHING, Kind, Origin, Value, Values, all_are
from gradcheck_lint.rules._rule import Rule, Violation
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gradcheck_lint.model.module import FunctionModel


class GradReadOnNonLeaf(Rule):
    """``.grad`` is read from an intermediate, which does not keep its gradient."""

    entry = catalogue.GRAD_READ_ON_NON_LEAF

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield every read of the gradient of a model's output, or of what is made of a leaf."""
        yield from _optimized(function)
        if function.module.mentions(b"retain_grad") or Part.BACKWARD not in function.scope.parts:
            return
        if not any(isinstance(event, Backward) for event in function.events()):
            return
        is_top = isinstance(function.scope.node, cst.Module)
        seen: set[str] = set()
        nodes = function.scope.nodes
        reads = [
            node for node in nodes if type(node) is cst.Attribute and node.attr.value == "grad"
        ]
        if not reads:
            return
        known = {dotted_name(node) for node in _seen_to(nodes)}
        cleared = {id(node.target) for node in nodes if type(node) is cst.AssignTarget}
        for node in reads:
            name = node.value.value if type(node.value) is cst.Name else None
            if name is None or name in seen or id(node) in cleared:
                continue
            values = _held_at_the_end(name, function)
            if not values:
                continue
            if f"{name}.grad" in known:
                continue
            if not is_top and _is_output(values, function):
                what = f"`{name}` is the output of a model"
            elif _are_of_leaf(values, function):
                what = f"`{name}` is computed from a leaf and none itself"
            else:
                continue
            seen.add(name)
            yield Violation(
                node,
                f"{what}, whose gradient is not kept: it is None",
                Severity.WARNING,
                f"call `{name}.retain_grad()` before backward()",
            )


def _seen_to(nodes: Sequence[cst.CSTNode]) -> Iterator[cst.CSTNode]:
    """Yield what is compared, as in ``if x.grad is not None``, and what is given a value."""
    for node in nodes:
        if type(node) is cst.Comparison:
            yield node.left
        elif type(node) is cst.Assign and not is_none(node.value):
            yield from (each.target for each in node.targets)


_PART = re.compile(
    r"forward\w*|(?:\w+_)?features?|encode\w*|embed\w*|layer\d+|conv\d*|fc\d*|stem|trunk|blocks?"
)
"""What the parts of a model are called whose output depends on its parameters."""


def _is_output(values: Values, function: FunctionModel) -> bool:
    """Tell whether a model, or a part of one that is called by its name, made each of these."""
    return all(
        value.kind is Kind.UNKNOWN
        and value.cut is None
        and (value.result_of != 0 or _is_of_part(value.node, function))
        for value in values
    )


def _is_of_part(node: cst.CSTNode | None, function: FunctionModel) -> bool:
    if type(node) is not cst.Call or not node.args:
        return False
    if type(node.func) is cst.Name:
        called = function.bindings.get(node.func.value, NOTHING)
        is_argument = bool(called) and all(each.origin is Origin.ARGUMENT for each in called)
        return is_argument and _PART.fullmatch(node.func.value) is not None
    if type(node.func) is not cst.Attribute:
        return False
    owner, part = dotted_name(node.func.value), node.func.attr.value
    return owner is not None and is_named_as_model(owner) and _PART.fullmatch(part) is not None


def _held_at_the_end(name: str, function: FunctionModel) -> Values:
    """Return what a name is bound to, of plain statements one after the other the last alone."""
    values = function.bindings.get(name, NOTHING)
    sources = sources_of(function.scope).get(name)
    if not sources or len(values) == 1:
        return values
    direct = {
        id(small.value)
        for small in small_statements(function.scope.body)
        if type(small) is cst.Assign
    }
    if any(id(source) not in direct for source in sources):
        return values
    last = frozenset(value for value in values if value.node is sources[-1])
    return last or values


def _are_of_leaf(values: Values, function: FunctionModel) -> bool:
    """Tell whether one operation made each of these of a leaf."""
    return all(_is_of_leaf(value, function) for value in values)


def _is_of_leaf(value: Value, function: FunctionModel) -> bool:
    node = value.node
    if value.kind not in {Kind.HISTORY, Kind.UNKNOWN}:
        return False
    if type(node) is cst.BinaryOperation:
        operands = [node.left, node.right]
        if any(type(inner) is cst.Call and _asks_for_gradient(inner) for inner in walk(node)):
            return value.kind is Kind.HISTORY
    elif type(node) is cst.Call and type(node.func) is cst.Attribute:
        operands = [node.func.value, *positional(node)]
        if node.func.attr.value in MAYBE_ITSELF_METHODS or _is_moved_leaf(node):
            return _is_moved_leaf(node)
    else:
        return False
    names = [name for name in map(dotted_name, operands) if name is not None]
    if value.kind is Kind.UNKNOWN:
        is_arithmetic = type(node) is cst.BinaryOperation
        return is_arithmetic and any(_is_made_leaf(name, function) for name in names)
    others = (function.bindings.get(name, NOTHING) - {value} for name in names)
    return any(all_are(held, Kind.LEAF) for held in others)


def _is_moved_leaf(node: cst.Call) -> bool:
    """Tell whether a leaf is moved to a GPU as soon as it is made: there it's another tensor."""
    assert type(node.func) is cst.Attribute
    made, handed = node.func.value, positional(node)
    if type(made) is not cst.Call or not _asks_for_gradient(made):
        return False
    if node.func.attr.value == "cuda":
        return True
    device = handed[0] if len(handed) == 1 and node.func.attr.value == "to" else None
    is_named = "device" in last_word(dotted_name(device)).lower()
    made_there = keyword(made, "device") is not None
    is_gpu = type(device) is cst.SimpleString and device.value.strip("'\"").startswith("cuda")
    return (is_named or is_gpu) and not made_there


def _is_made_leaf(name: str, function: FunctionModel) -> bool:
    """Tell whether all that a name is given is asked to require grad: ``x.requires_grad_()``."""
    sources = sources_of(function.scope).get(name)
    return bool(sources) and all(
        type(source) is cst.Call
        and type(source.func) is cst.Attribute
        and source.func.attr.value == "requires_grad_"
        and (not source.args or boolean(source.args[0].value) is True)
        for source in sources or ()
    )


def _asks_for_gradient(node: cst.Call) -> bool:
    last = (dotted_name(node.func) or "").rpartition(".")[2]
    return last == "Parameter" or boolean(keyword(node, "requires_grad")) is True


def _optimized(function: FunctionModel) -> Iterator[Violation]:
    """Yield every computed tensor that an optimizer is given in a list."""
    bindings = function.bindings
    computed = {
        name
        for name, values in bindings.items()
        if all_are(values, Kind.HISTORY) and _are_of_leaf(values, function)
    }
    for node in function.scope.nodes if computed else ():
        if type(node) is not cst.Call or not node.args:
            continue
        handed = node.args[0].value
        if not isinstance(handed, (cst.List, cst.Tuple)):
            continue
        if not function.module.makes_optimizer(node):
            continue
        for element in handed.elements:
            name = dotted_name(element.value)
            if name in computed:
                (made, *_) = bindings[name]
                yield Violation(
                    node,
                    f"`{name}` is computed from a leaf and none itself: an optimizer takes leaves "
                    "alone, and torch raises here",
                    Severity.WARNING,
                    f"compute first, then ask for the gradient: `{name}.requires_grad_()`",
                    ((made.node, "computed here"),) if made.node is not None else (),
                )
                break
