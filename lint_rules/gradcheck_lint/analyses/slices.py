"""Know what the backwards of a file go through: a slice of the program, by its syntax."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import libcst as cst

from gradcheck_lint.analyses.callers import expressions_given
from gradcheck_lint.model.flow import Backward, GradMode
from gradcheck_lint.model.knowledge import words
from gradcheck_lint.model.nearness import BACKWARD
from gradcheck_lint.model.syntax import assigned_pairs, bound_names, child_list, dotted_name, walk
from gradcheck_lint.model.values import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel, ModuleModel
    from gradcheck_lint.model.scopes import FunctionScope

__all__ = ["differentiated", "values_of"]

_MOST: Final = 4000
"""How many expressions are looked at: far more than the losses of a program take."""
_WITHOUT_GRAPH: Final = words(
    """
    detach data item tolist numpy argmax argmin argsort sign round floor ceil long int bool size
    dim shape device dtype numel ndim grad state_dict multinomial sample
    """
)
"""Attributes and methods of tensors whose result no gradient goes through."""
_NUMBERS: Final = frozenset({"int", "float", "len", "isinstance", "print", "range", "str", "bool"})
_FILLING: Final = frozenset({"append", "extend", "add", "insert", "update", "setdefault"})
"""Methods that put something into a container."""


def differentiated(module: ModuleModel) -> dict[int, cst.CSTNode]:
    """Return the nodes that what is differentiated may be computed from, by ``id``.

    Each has the backward that goes through it. What is detached, compared or computed where
    nothing is recorded is left out.
    """
    if "slice of backwards" not in module.memo:
        known = _Slice(module)
        for function in list(module.functions()):
            if not module.near.has_itself(function.scope, BACKWARD):
                continue
            for event in list(function.events()):
                if isinstance(event, Backward) and not event.partial:
                    known.follow(event.node, function)
        module.memo["slice of backwards"] = known.found
    found: dict[int, cst.CSTNode] = module.memo["slice of backwards"]
    return found


class _Slice:
    """Walks from a backward to what its loss is computed from."""

    def __init__(self, module: ModuleModel) -> None:
        self._module = module
        self._unrecorded: dict[int, frozenset[int]] = {}
        self._defined: set[tuple[int, str]] = set()
        self._returned: set[int] = set()
        self.found: dict[int, cst.CSTNode] = {}

    def follow(self, backward: cst.CSTNode, function: FunctionModel) -> None:
        """Note all that the loss of a backward is computed from."""
        waiting: list[tuple[FunctionModel, cst.CSTNode]] = [(function, backward)]
        while waiting and len(self.found) < _MOST:
            known, node = waiting.pop()
            if id(node) in self.found or id(node) in self._without(known):
                continue
            self.found[id(node)] = backward
            waiting += self._below(node, known)

    def _below(
        self, node: cst.CSTNode, function: FunctionModel
    ) -> Iterator[tuple[FunctionModel, cst.CSTNode]]:
        path = dotted_name(node)
        if type(node) is cst.Comparison or type(node) is cst.Lambda:
            return
        if type(node) is cst.Attribute and node.attr.value in _WITHOUT_GRAPH:
            return
        if path is not None:
            yield from self._given(path, function)
            if type(node) is cst.Attribute and path.count(".") > 1:
                yield function, node.value
            return
        if type(node) is cst.Call:
            called = node.func
            if type(called) is cst.Attribute and called.attr.value in _WITHOUT_GRAPH:
                return
            if dotted_name(called) in _NUMBERS:
                return
            yield from self._returned_by(node, function)
            yield function, called
            for argument in node.args:
                yield function, argument.value
            return
        for child in [node.value] if type(node) is cst.Subscript else child_list(node):
            if isinstance(child, (cst.BaseExpression, cst.BaseElement, cst.CompFor, cst.Arg)):
                yield function, child

    def _returned_by(
        self, call: cst.Call, function: FunctionModel
    ) -> Iterator[tuple[FunctionModel, cst.CSTNode]]:
        event = function.call_at(call)
        scope = (None if event is None else event.function) or self._forward(call, function)
        if scope is None or id(scope) in self._returned or isinstance(scope.node, cst.Module):
            return
        self._returned.add(id(scope))
        called = self._module.function(scope)
        if called.mode is not GradMode.DISABLED:
            for node in scope.nodes_of(cst.Return):
                if node.value is not None:
                    yield called, node.value

    def _forward(self, call: cst.Call, function: FunctionModel) -> FunctionScope | None:
        """Return what runs where an object of a class of the file is called."""
        path = dotted_name(call.func) or ""
        values = function.bindings.get(path, frozenset())
        owner, (root, _, attribute) = function.scope.owner, path.partition(".")
        if not values and owner is not None and root == function.scope.first_parameter:
            values = self._module.class_attribute(owner.name, attribute)
        scopes = self._module.scopes
        names = {value.name for value in values if value.kind is Kind.INSTANCE}
        return scopes.method(scopes.classes.get(names.pop()), "forward") if names else None

    def _given(
        self, path: str, function: FunctionModel
    ) -> Iterator[tuple[FunctionModel, cst.CSTNode]]:
        """Yield what a name, or an attribute, is given where it is known."""
        scope = function.scope
        root, _, attribute = path.partition(".")
        key = (id(scope), path)
        if key in self._defined:
            return
        self._defined.add(key)
        if attribute and scope.owner is not None and root == scope.first_parameter:
            for method in scope.owner.methods.values():
                if not method.name.endswith("__init__"):
                    own = f"{method.first_parameter}.{attribute}"
                    for value in values_of(own, method):
                        yield self._module.function(method), value
            return
        found = list(values_of(root, scope))
        yield from ((function, value) for value in found)
        if root in scope.parameters:
            yield from expressions_given(function, root)
        elif not found and scope.parent is not None:
            yield from self._given(path, self._module.function(scope.parent))

    def _without(self, function: FunctionModel) -> frozenset[int]:
        """Return the nodes of a function that stand where nothing is recorded."""
        scope = function.scope
        if id(scope) not in self._unrecorded:
            resolve = self._module.scopes.resolve_import
            inside = (
                node
                for node in scope.nodes_of(cst.With)
                for item in node.items
                if type(item.item) is cst.Call
                and (resolve(dotted_name(item.item.func) or "") or "").rpartition(".")[2]
                in {"no_grad", "inference_mode"}
            )
            self._unrecorded[id(scope)] = frozenset(
                id(each) for node in inside for each in walk(node.body)
            )
        return self._unrecorded[id(scope)]


def values_of(path: str, scope: FunctionScope) -> Iterator[cst.CSTNode]:
    """Yield what a name or an attribute is given, item by item as well."""
    for node in scope.nodes:
        kind = type(node)
        if kind is cst.Assign or kind is cst.AnnAssign:
            for target, value in assigned_pairs(node) or [
                (each.target, node.value)  # type: ignore[attr-defined]
                for each in getattr(node, "targets", ())
            ]:
                if path in bound_names(target) or _holder(target) == path:
                    yield value
        elif kind is cst.AugAssign:
            if path in {dotted_name(node.target), _holder(node.target)}:  # type: ignore[attr-defined]
                yield node.value  # type: ignore[attr-defined]
        elif kind is cst.For or kind is cst.CompFor:
            if path in bound_names(node.target):  # type: ignore[attr-defined]
                yield node.iter  # type: ignore[attr-defined]
        elif kind is cst.Call and type(node.func) is cst.Attribute:  # type: ignore[attr-defined]
            yield from _filled_by(node, path)  # type: ignore[arg-type]


def _filled_by(call: cst.Call, path: str) -> Iterator[cst.CSTNode]:
    """Yield what a call puts into a container of this name."""
    called = call.func
    if type(called) is not cst.Attribute or called.attr.value not in _FILLING:
        return
    if dotted_name(called.value) == path:
        yield from (argument.value for argument in call.args)


def _holder(target: cst.CSTNode) -> str | None:
    return dotted_name(target.value) if type(target) is cst.Subscript else None
