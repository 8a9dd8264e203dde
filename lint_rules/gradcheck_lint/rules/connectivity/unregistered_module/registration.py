"""Tell how a class uses a container of layers: whether it runs them or registers them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from gradcheck_lint.model.knowledge import HARMLESS_BUILTINS
from gradcheck_lint.model.syntax import bound_names, dotted_name, walk

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gradcheck_lint.model.module import FunctionModel
    from gradcheck_lint.model.scopes import ClassScope, FunctionScope

_ITERATORS = frozenset({"enumerate", "zip", "len", "reversed", "iter", "range", "list", "tuple"})


def is_run(attribute: str, owner: ClassScope) -> bool:
    """Tell whether a method calls the elements of the list."""
    for method in owner.methods.values():
        if attribute not in method.words:
            continue
        first = method.first_parameter
        for node in method.nodes:
            kind = type(node)
            if kind is not cst.For and kind is not cst.Call:
                continue
            if type(node) is cst.For and _mentions(node.iter, f"{first}.{attribute}"):
                names = set(bound_names(node.target))
                if any(
                    type(call) is cst.Call and dotted_name(call.func) in names
                    for call in walk(node.body)
                ):
                    return True
            elif (
                type(node) is cst.Call
                and type(node.func) is cst.Subscript
                and dotted_name(node.func.value) == f"{first}.{attribute}"
            ):
                return True
    return False


def _mentions(node: cst.CSTNode, path: str) -> bool:
    return any(type(item) is cst.Attribute and dotted_name(item) == path for item in walk(node))


def is_registered(  # noqa: PLR0911 - one answer for each way to register
    attribute: str, function: FunctionModel, first: str
) -> bool:
    """Tell whether the class hands the container on, adds it as modules, or says it's frozen."""
    path = f"{first}.{attribute}"
    owner = function.scope.owner
    assert owner is not None
    elements = _elements_of(function.scope.nodes, attribute)
    lineage = function.module.scopes.lineage(owner)
    for method in (method for known in lineage for method in known.methods.values()):
        for node in method.nodes_of(cst.Call, cst.Assign):
            if type(node) is cst.Call:
                name = dotted_name(node.func) or ""
                if method is function.scope and _hands_on(node, elements):
                    return True
                if name.rpartition(".")[2] in _REGISTERING:
                    return True
                if name.rpartition(".")[2] in {"parameters", "named_parameters"} and (
                    method.name.rpartition(".")[2] == "parameters"
                ):
                    return True
                for argument in node.args:
                    if _is_whole(argument.value, path) and name not in _ITERATORS:
                        return True
                    if type(argument.value) is cst.StarredElement:
                        return True
            elif type(node) is cst.Assign and (
                dotted_name(node.value) == path or _is_registry(node.targets[0].target, method)
            ):
                return True
    for method_name in ("parameters", "named_parameters", "__setattr__"):
        if method_name in owner.methods:
            return True
    return _is_asked_for_parameters(attribute, function)


_REGISTERING = frozenset({"add_module", "register_module", "setattr", "__setattr__"})


def _is_registry(target: cst.BaseExpression, method: FunctionScope) -> bool:
    """Tell whether this is an entry of what torch registers modules in: ``self._modules[name]``."""
    return (
        type(target) is cst.Subscript
        and dotted_name(target.value) == f"{method.first_parameter}._modules"
    )


def _is_whole(node: cst.BaseExpression, path: str) -> bool:
    """Tell whether an expression is a container, or a list or view of all that is in it."""
    while type(node) is cst.Call:
        if dotted_name(node.func) in _ITERATORS and len(node.args) == 1:
            node = node.args[0].value
        elif type(node.func) is cst.Attribute and node.func.attr.value in _VIEWS:
            node = node.func.value
        else:
            return False
    return dotted_name(node) == path


_VIEWS = frozenset({"values", "items"})


def has_other_base(owner: ClassScope, function: FunctionModel) -> bool:
    """Tell whether a class also has a base of another file, which may register what it finds."""
    scopes = function.module.scopes
    return any(
        not imported.startswith("torch.")
        for scope in scopes.lineage(owner)
        if len(scope.bases) > 1
        for base in scope.bases
        if (imported := scopes.resolve_import(base)) is not None
    )


def _is_asked_for_parameters(attribute: str, function: FunctionModel) -> bool:
    """Tell whether somebody takes the parameters of what is in the container by its name."""
    for scope in function.module.scopes.functions:
        if attribute not in scope.words or _GIVING.isdisjoint(scope.words):
            continue
        elements = _elements_of(scope.nodes, attribute)
        for node in scope.nodes_of(cst.Attribute):
            if node.attr.value not in _GIVING:
                continue
            if dotted_name(node.value) in elements or _names_attribute(node.value, attribute):
                return True
    return False


def _elements_of(nodes: Iterable[cst.CSTNode], attribute: str) -> frozenset[str]:
    """Return the names that loops give to the elements of a container."""
    return frozenset(
        name
        for node in nodes
        if isinstance(node, (cst.For, cst.CompFor)) and _names_attribute(node.iter, attribute)
        for name in bound_names(node.target)
    )


def _hands_on(node: cst.Call, elements: frozenset[str]) -> bool:
    """Tell whether a function gets an element, and may freeze or register it."""
    if type(node.func) is not cst.Name or node.func.value in HARMLESS_BUILTINS:
        return False
    return any(dotted_name(argument.value) in elements for argument in node.args)


_GIVING = frozenset({"parameters", "named_parameters"})


def _names_attribute(node: cst.CSTNode, attribute: str) -> bool:
    return any(type(item) is cst.Attribute and item.attr.value == attribute for item in walk(node))
