"""GCS319: an optimizer that is made where it steps, again for each step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import libcst as cst

from gradcheck_lint.analyses.repeated_calls import repeats
from gradcheck_lint.analyses.settings import constant_of, number
from gradcheck_lint.model.flow import Step
from gradcheck_lint.model.syntax import dotted_name, keyword, last_word, positional
from gradcheck_lint.model.values import Kind, Value
from gradcheck_lint.rules._rule import Rule, Violation
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel

_STATELESS: Final = frozenset({"SGD"})
"""Optimizers that keep nothing between steps, unless they have momentum."""
_SOLVERS: Final = frozenset({"LBFGS"})
"""Optimizers one step of which is a whole search."""


class OptimizerMadeAnew(Rule):
    """An optimizer is made for each step, of parameters that are there for longer."""

    entry = catalogue.OPTIMIZER_MADE_ANEW

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield optimizers that are made in the loop, or repeated function, of their only step."""
        told = set()
        nodes = function.scope.nodes
        own = {id(node) for node in nodes if type(node) is cst.Call}
        for event in function.events():
            if not isinstance(event, Step) or len(event.values) != 1:
                continue
            (made,) = event.values
            node = made.node
            if made.kind is not Kind.OPTIMIZER or type(node) is not cst.Call:
                continue
            # What a caller hands in was made there.
            if id(node) in told or id(node) not in own or not function.module.makes_optimizer(node):
                continue
            if _is_for_one_step(event, made, function) and _keeps_state(node, function):
                told.add(id(node))
                yield Violation(
                    node,
                    f"`{last_word(dotted_name(node.func))}` is made anew for each step: what it "
                    "keeps between steps (moments, momentum, their number) is lost with each",
                    Severity.WARNING,
                    "make the optimizer once, before the loop, and hand it on",
                    ((event.node, "its only step"),),
                )


def _is_for_one_step(step: Step, made: Value, function: FunctionModel) -> bool:
    """Return whether a step comes once for each making, which repeats, of lasting parameters."""
    if step.loops != made.loops or step.closure:
        return False
    if not made.loops and not repeats(function):
        return False
    owner = _owner_of_parameters(made.node)
    if owner is None:
        return False
    known = function.bindings.get(owner, frozenset())
    if not made.loops:
        return not any(value.node is not None and value.kind is Kind.MODULE for value in known)
    return bool(known) and not any(value.loops == made.loops for value in known)


def _owner_of_parameters(node: cst.CSTNode | None) -> str | None:
    """Return the name of the model in ``Adam(model.parameters(), ...)``."""
    assert type(node) is cst.Call
    given = positional(node)
    what = given[0] if given else keyword(node, "params")
    if type(what) is not cst.Call or last_word(dotted_name(what.func)) != "parameters":
        return None
    return (dotted_name(what.func) or "").rpartition(".")[0] or None


def _keeps_state(node: cst.Call, function: FunctionModel) -> bool:
    kind = last_word(dotted_name(node.func))
    if kind in _SOLVERS:
        return False
    momentum = keyword(node, "momentum")
    return kind not in _STATELESS or bool(number(constant_of(momentum, function)))
