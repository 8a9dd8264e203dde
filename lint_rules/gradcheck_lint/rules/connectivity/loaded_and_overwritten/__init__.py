"""GCS415: what a checkpoint has is overwritten, or what counts is not in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import libcst as cst

from gradcheck_lint.model.syntax import dotted_name, last_word, walk
from gradcheck_lint.rules._rule import Rule, Violation
from gradcheck_lint.rules.connectivity.loaded_and_overwritten.unsaved_state import (
    left_out_by_wrapper,
    unsaved_state,
)
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel
    from gradcheck_lint.model.scopes import ClassScope, FunctionScope


class LoadedAndOverwritten(Rule):
    """What is loaded is set anew afterwards, or by a layer that does not know of it."""

    entry = catalogue.LOADED_AND_OVERWRITTEN

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield what initializes a loaded model, and state of a class that no checkpoint has."""
        if function.scope.owner is not None and function.scope.name.endswith(".__init__"):
            yield from unsaved_state(function)
            yield from left_out_by_wrapper(function)
        if "load_state_dict" in function.scope.words:
            yield from _set_anew(function)


def _set_anew(function: FunctionModel) -> Iterator[Violation]:
    """Yield each call that initializes the whole of a model after its state was loaded."""
    loaded: dict[str, cst.Call] = {}
    for statement in function.scope.small_statements:
        node = statement.value if type(statement) is cst.Expr else None
        if type(statement) is cst.Assign and type(statement.value) is not cst.Call:
            continue
        if type(statement) is cst.Assign:
            for target in statement.targets:
                loaded.pop(dotted_name(target.target) or "", None)  # made anew
        if type(node) is not cst.Call or type(node.func) is not cst.Attribute:
            continue
        name, method = dotted_name(node.func.value), node.func.attr.value
        if name is None:
            continue
        if method == "load_state_dict":
            loaded[name] = node
        elif name in loaded and _initializes(node, method, function):
            yield Violation(
                node,
                f"this initializes `{name}` anew, whose state was loaded before: training begins "
                "from random weights",
                Severity.WARNING,
                "initialize first, and load the state after that",
                ((loaded[name], "loaded here"),),
            )


def _initializes(node: cst.Call, method: str, function: FunctionModel) -> bool:
    """Return whether a method of a model sets all its weights, as ``apply(init)`` does."""
    if method == "apply":
        given = [dotted_name(argument.value) for argument in node.args]
        known = function.module.scopes.by_name.get(given[0] or "", ()) if len(given) == 1 else ()
        return len(known) == 1 and _sets_weights(known[0])
    call = function.call_at(node)
    if call is None or call.function is None or call.function.owner is None:
        return False
    called, owner = call.function, call.function.owner
    if not _sets_weights(called):
        return False
    layers = _layers(owner)
    return not called.words.isdisjoint({"modules", "parameters", "apply"}) or (
        bool(layers) and layers <= called.words
    )


def _layers(owner: ClassScope) -> frozenset[str]:
    """Return the attributes of a module that its constructor makes."""
    made = owner.methods.get("__init__")
    targets = [] if made is None else [dotted_name(target) for target, _ in made.assignments]
    return frozenset(
        last_word(name) for name in targets if name is not None and name.startswith("self.")
    )


def _sets_weights(scope: FunctionScope) -> bool:
    """Return whether a function calls what fills tensors: ``nn.init.zeros_(layer.bias)``."""
    return any(
        (dotted_name(node.func) or "").split(".")[-2:-1] == ["init"]
        or last_word(dotted_name(node.func)) in _FILLS
        for node in walk(scope.node)
        if type(node) is cst.Call
    )


_FILLS: Final = frozenset(
    {"normal_", "uniform_", "zero_", "fill_", "reset_parameters", "xavier_uniform_"}
)
