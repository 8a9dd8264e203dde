"""Find closures that an optimizer calls several times in a step, and that zero nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from gradcheck_lint.model.flow import Step
from gradcheck_lint.model.scopes import Part
from gradcheck_lint.model.syntax import dotted_name, keyword, last_word, positional
from gradcheck_lint.model.values import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel
    from gradcheck_lint.model.scopes import FunctionScope

__all__ = ["unzeroed_closures"]


def unzeroed_closures(function: FunctionModel) -> Iterator[tuple[Step, cst.CSTNode]]:
    """Yield the steps of what is, or may be, L-BFGS whose closure adds to old gradients.

    Of a file that zeroes gradients elsewhere: of one that never does, the step itself is told.
    """
    module = function.module
    if not module.mentions(b"LBFGS(") or not module.mentions(b"zero_grad"):
        return
    for event in function.events():
        if not isinstance(event, Step) or not event.closure or type(event.node) is not cst.Call:
            continue
        given = keyword(event.node, "closure") or next(iter(positional(event.node)), None)
        closure = function.scope.nested.get(dotted_name(given) or "")
        if closure is None or not _may_call_again(event, function):
            continue
        if Part.BACKWARD in closure.parts and not _zeroes(closure, function):
            yield event, closure.node


def _may_call_again(step: Step, function: FunctionModel) -> bool:
    """Return whether the optimizer is L-BFGS, as far as it is known."""
    known = [value.node for value in step.values if value.kind is Kind.OPTIMIZER]
    made = [dotted_name(node.func) for node in known if type(node) is cst.Call]
    return all(last_word(name) == "LBFGS" or not _is_of_torch(name, function) for name in made)


def _is_of_torch(name: str | None, function: FunctionModel) -> bool:
    return (function.module.scopes.resolve_import(name or "") or "").startswith("torch.optim.")


def _zeroes(closure: FunctionScope, function: FunctionModel) -> bool:
    """Return whether a closure, or what it calls, may clear gradients, by its words."""
    called = {last_word(dotted_name(call.func)) for call in closure.nodes_of(cst.Call)}
    others = [
        scope
        for scope in function.module.scopes.functions
        if scope.name.rpartition(".")[2] in called
    ]
    return any(
        word == "grad" or "zero" in word for scope in (closure, *others) for word in scope.words
    )
