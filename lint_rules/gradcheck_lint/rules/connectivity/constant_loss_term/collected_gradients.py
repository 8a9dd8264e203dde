"""Find terms of a loss that are made of nothing but gradients without a graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import libcst as cst

from gradcheck_lint.model.flow import Backward
from gradcheck_lint.model.knowledge import FACTORIES, SAME_GRAPH_METHODS, TENSOR_METHODS
from gradcheck_lint.model.syntax import bound_names, dotted_name, is_literal, literal_key
from gradcheck_lint.model.values import NOTHING, Kind, all_are
from gradcheck_lint.rules.connectivity.graph_broken.terms import is_gradient, keeps_no_graph

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel

__all__ = ["CollectedGradients", "collected_gradients"]


class CollectedGradients(NamedTuple):
    """A term of a loss, what the gradients come from that it is made of, and the ``backward()``."""

    term: cst.BaseExpression
    calls: tuple[cst.Call, ...]
    backward: Backward


def collected_gradients(function: FunctionModel) -> Iterator[CollectedGradients]:
    """Yield each term beside others that lists, loops and sums make of such gradients.

    ``grads.append(autograd.grad(...))``, gone through later for their variance.
    """
    if "grad" not in function.scope.words or not any(
        is_gradient(node, function) for node in function.scope.nodes_of(cst.Call)
    ):
        return
    reader = _Reader(function)
    for event in function.events():
        called = event.node.func if type(event.node) is cst.Call else None
        if not isinstance(event, Backward) or type(called) is not cst.Attribute:
            continue
        constant, others = reader.terms_of(called.value)
        for term, calls in constant if others else ():
            yield CollectedGradients(term, calls, event)


class _Reader:
    """Say of the names of a function what they are made of, each once."""

    def __init__(self, function: FunctionModel) -> None:
        self._function = function
        self._sources: dict[str, list[cst.BaseExpression]] = {}
        self._known: dict[str, _MadeOf] = {}
        for target, value in _bound(function):
            for name in bound_names(target):
                self._sources.setdefault(name, []).append(value)

    def terms_of(
        self, loss: cst.BaseExpression
    ) -> tuple[list[tuple[cst.BaseExpression, tuple[cst.Call, ...]]], int]:
        """Return the constant terms of a sum with their gradients, and how many others it has."""
        waiting, seen, others = [loss], set[str](), 0
        constant: list[tuple[cst.BaseExpression, tuple[cst.Call, ...]]] = []
        while waiting:
            term = waiting.pop()
            made = self._made_of(term)
            name = dotted_name(term)
            sources = self._sources.get(name or "", [])
            if made:
                constant.append((term, made))
            elif made is None and type(term) is cst.BinaryOperation:
                if isinstance(term.operator, (cst.Add, cst.Subtract)):
                    waiting += [term.left, term.right]
                else:
                    others += 1
            elif made is None and sources:
                if name not in seen:
                    seen.add(name or "")
                    waiting += sources
            elif made is None:
                others += 1
        return constant, others

    def _made_of(self, node: cst.BaseExpression) -> _MadeOf:
        """Return the gradients that a value is made of, with numbers; None if of more."""
        if is_literal(node):
            return ()
        if is_gradient(node, self._function):
            assert type(node) is cst.Call
            return (node,) if keeps_no_graph(node) else None
        name = dotted_name(node)
        if name is not None:
            return self._of_name(name)
        below = self._below(node)
        return None if below is None else self._together(below)

    def _together(self, parts: list[cst.BaseExpression]) -> _MadeOf:
        found: list[cst.Call] = []
        for part in parts:
            made = self._made_of(part)
            if made is None:
                return None
            found += [call for call in made if not any(call is known for known in found)]
        return tuple(found)

    def _of_name(self, name: str) -> _MadeOf:
        if name not in self._known:
            self._known[name] = ()  # what it is made of it itself, as a sum in a loop
            sources = self._sources.get(name)
            is_number = all_are(self._function.bindings.get(name, NOTHING), Kind.NUMBER)
            is_handed = name in self._function.scope.parameters
            if sources is None or is_handed or "." in name:
                self._known[name] = () if is_number else None
            else:
                self._known[name] = self._together(sources)
        return self._known[name]

    def _below(self, node: cst.BaseExpression) -> list[cst.BaseExpression] | None:
        """Return what a value is computed of, None where that is not known."""
        if type(node) is cst.BinaryOperation:
            is_product = isinstance(node.operator, (cst.Multiply, cst.Divide))
            sides = [node.left, node.right]
            return [side for side in sides if not (is_product and self._is_weight(side))]
        if type(node) is cst.UnaryOperation:
            return [node.expression]
        if type(node) is cst.Subscript:
            return [node.value]
        if isinstance(node, (cst.List, cst.Tuple)):
            return [element.value for element in node.elements]
        if isinstance(node, (cst.ListComp, cst.GeneratorExp)):
            return [node.elt]
        return self._operands(node) if type(node) is cst.Call else None

    def _is_weight(self, node: cst.BaseExpression) -> bool:
        """Return whether a factor is a setting: an attribute, or an item of one."""
        if type(node) is cst.Subscript:
            return literal_key(node) is not None and dotted_name(node.value) is not None
        name = dotted_name(node)
        if name is None or name in self._sources:
            return False
        held = self._function.bindings.get(name, NOTHING)
        if name in self._function.scope.parameters:
            return all_are(held, Kind.NUMBER)
        return not any(value.kind in _WITH_GRAPH or value.through for value in held)

    def _operands(self, call: cst.Call) -> list[cst.BaseExpression] | None:
        given = [argument.value for argument in call.args]
        name = dotted_name(call.func) or ""
        resolved = self._function.module.scopes.resolve_import(name) or ""
        if name in _OF_PYTHON or resolved.startswith("torch."):
            return [] if resolved in FACTORIES else given
        if type(call.func) is cst.Attribute and call.func.attr.value in _METHODS:
            return [call.func.value, *given]
        return None


_MadeOf = tuple[cst.Call, ...] | None

_METHODS: Final = TENSOR_METHODS | SAME_GRAPH_METHODS | {"detach", "add", "size"}
_OF_PYTHON: Final = frozenset({"enumerate", "list", "reversed", "sum", "tuple", "zip"})
_WITH_GRAPH: Final = frozenset({Kind.HISTORY, Kind.LEAF, Kind.LEAF_VIEW})


def _bound(function: FunctionModel) -> Iterator[tuple[cst.BaseExpression, cst.BaseExpression]]:
    """Yield each name with what is assigned or added to it, put into it, or gone through for it."""
    yield from function.scope.assignments
    for node in function.scope.nodes:
        if type(node) is cst.AugAssign:
            yield node.target, node.value
        elif isinstance(node, (cst.For, cst.CompFor)):
            yield node.target, node.iter
        elif (
            type(node) is cst.Call
            and type(node.func) is cst.Attribute
            and node.func.attr.value in _PUTS
            and node.args
        ):
            yield node.func.value, node.args[-1].value


_PUTS: Final = frozenset({"add_", "append", "extend", "insert"})
