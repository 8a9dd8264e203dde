"""GCS502: a Function with instance methods."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from gradcheck_lint.model.function_class import (
    AutogradFunction,
    autograd_functions,
    has_decorator,
)
from gradcheck_lint.model.syntax import assigned_once, dotted_name, walk
from gradcheck_lint.model.values import Kind, all_are
from gradcheck_lint.rules._rule import Rule, Violation
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel
    from gradcheck_lint.model.scopes import FunctionScope


class LegacyFunction(Rule):
    """An autograd.Function has instance methods, which torch no longer runs."""

    entry = catalogue.LEGACY_FUNCTION

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield every Function of the old style, where it is called or defined."""
        if not isinstance(function.scope.node, cst.Module):
            return
        for known in autograd_functions(function.module):
            calls = list(_calls_of_instances(known))
            if not _is_old(known):
                for call in calls:
                    yield Violation(
                        call,
                        f"an instance of `{known.name}` is called, but torch only runs Functions "
                        "through `.apply`: it raises a RuntimeError here",
                        Severity.ERROR,
                        f"call `{known.name}.apply(...)`",
                        ((known.scope.node.name, "defined here"),),
                    )
                continue
            for call in calls:
                yield Violation(
                    call,
                    f"an instance of `{known.name}` is called, but torch only runs Functions with "
                    "static methods, through `.apply`: it raises a RuntimeError here",
                    Severity.ERROR,
                    f"make forward and backward static and call `{known.name}.apply(...)`",
                    ((known.scope.node.name, "defined here with instance methods"),),
                )
            if not calls and _keeps_state(known):
                yield Violation(
                    known.scope.node.name,
                    f"`{known.name}` keeps its data on self: torch only runs Functions with static "
                    "methods, which have no instance",
                    Severity.WARNING,
                    "make forward and backward static and keep data on ctx",
                )


def _is_old(function: AutogradFunction) -> bool:
    forward = function.forward
    return forward is not None and not has_decorator(forward, "staticmethod")


def _calls_of_instances(function: AutogradFunction) -> list[cst.Call]:
    """Return `Fn(...)(x)` and calls of names that hold an instance."""
    scopes = function.module.scopes
    if scopes.method(function.scope, "__call__") is not None:
        return []
    found: list[cst.Call] = []
    names: set[str] = set()
    for node in walk(function.module.tree):
        if type(node) is cst.Call and type(node.func) is cst.Call:
            if _makes(node.func, function):
                found.append(node)
        else:
            target, value = assigned_once(node)
            if value is not None and _makes(value, function):
                names.add((dotted_name(target) or "").rpartition(".")[2])
    for scope in scopes.functions if names else ():
        if not names.isdisjoint(scope.words):
            found.extend(_calls_of_names(scope, function))
    return found


def _makes(node: cst.BaseExpression, function: AutogradFunction) -> bool:
    return type(node) is cst.Call and dotted_name(node.func) == function.name


def _calls_of_names(scope: FunctionScope, function: AutogradFunction) -> Iterator[cst.Call]:
    """Yield the calls of what can only be an instance."""
    module = function.module
    for node in scope.nodes_of(cst.Call):
        root, _, attribute = (dotted_name(node.func) or "").partition(".")
        if not attribute:
            own = module.function(scope).bindings.get(root)
            values = own if own is not None else module.bindings_around(scope, root)
        elif scope.owner is not None and root == scope.first_parameter:
            values = module.class_attribute(scope.owner.name, attribute)
        else:
            continue
        if all_are(values, Kind.INSTANCE) and {known.name for known in values} == {function.name}:
            yield node


def _keeps_state(function: AutogradFunction) -> bool:
    """Tell whether the methods read attributes that ``__init__`` sets on self."""
    maker, forward = function.method("__init__"), function.forward
    if maker is None or forward is None or forward.first_parameter != maker.first_parameter:
        return False
    return any(
        type(node.value) is cst.Name and node.value.value == forward.first_parameter
        for node in forward.nodes_of(cst.Attribute)
    )
