"""GCS902: volatile= is ignored."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from gradcheck_lint.model.flow import Backward, GradMode
from gradcheck_lint.model.grad_mode import unrecorded_by_with
from gradcheck_lint.model.knowledge import VARIABLE_CLASSES
from gradcheck_lint.model.syntax import (
    boolean,
    dotted_name,
    has_star,
    keyword,
    positional,
    walk,
)
from gradcheck_lint.rules._rule import (
    Fix,
    NewImport,
    Removal,
    Replacement,
    Rule,
    Violation,
)
from gradcheck_lint.rules.legacy.guards import guarded_by_question, top_level
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel


class LegacyVolatile(Rule):
    """``volatile=True`` no longer switches recording off."""

    entry = catalogue.LEGACY_VOLATILE

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield every `Variable(x, volatile=True)` where recording may be on."""
        scopes = function.module.scopes
        if not function.module.mentions(b"volatile") or function.mode is GradMode.DISABLED:
            return
        trains = any(isinstance(event, Backward) for event in function.events())
        if not isinstance(function.scope.node, cst.Module):
            nodes = list(function.scope.nodes)
        elif len(function.module.scopes.functions) > 1:
            nodes = list(top_level(function.scope.node))
        else:
            nodes = list(walk(function.scope.node))
        guarded = guarded_by_question(nodes) | unrecorded_by_with(nodes, scopes)
        for node in nodes:
            if type(node) is not cst.Call or id(node) in guarded:
                continue
            wanted = keyword(node, "volatile")
            if wanted is None or boolean(wanted) is False:
                continue
            if scopes.resolve_import(dotted_name(node.func) or "") not in VARIABLE_CLASSES:
                continue
            if trains:
                severity, what = Severity.NOTE, "it changes nothing on a training input"
            elif boolean(wanted):
                severity, what = Severity.ERROR, "the graph is recorded after all"
            else:
                severity, what = Severity.WARNING, "the graph is recorded whatever it says"
            yield Violation(
                node,
                f"volatile= is ignored since torch 0.4: {what}",
                severity,
                "drop Variable and run this under `with torch.no_grad():`",
                fix=_without_volatile(node) if trains else _under_no_grad(node, function),
            )


def _without_volatile(node: cst.Call) -> Fix:
    """Drop the argument: torch ignores it, so training goes on as before."""
    argument = next(
        given
        for given in node.args
        if given.keyword is not None and given.keyword.value == "volatile"
    )
    return Fix((Removal(argument),), "Drop volatile=, which is ignored", safe=True)


def _under_no_grad(node: cst.Call, function: FunctionModel) -> Fix | None:
    """Use the tensor itself and decorate the function, which then does what was meant.

    A caller that differentiates what the function returns would lose its graph: not safe.
    """
    around = function.scope.node
    handed = positional(node)
    others = [argument for argument in node.args if argument.keyword is not None]
    is_plain = all(
        argument.keyword is not None
        and (argument.keyword.value == "volatile" or boolean(argument.value) is False)
        for argument in others
    )
    if type(around) is not cst.FunctionDef or has_star(node) or len(handed) != 1:
        return None
    if not is_plain or boolean(keyword(node, "volatile")) is not True:
        return None
    scopes = function.module.scopes
    has_torch = scopes.resolve_import("torch") == "torch"
    name = cst.parse_expression("torch.no_grad()" if has_torch else "no_grad()")
    plain = cst.ensure_type(around.deep_replace(node, handed[0]), cst.FunctionDef)
    marked = plain.with_changes(decorators=[*plain.decorators, cst.Decorator(name)])
    needed = () if has_torch else (NewImport("torch", "no_grad"),)
    return Fix(
        (Replacement(around, marked), *needed),
        "Use the tensor itself and decorate the function with no_grad",
    )
