"""GCS406: which parameters of a model are trained is decided for all of them, and then again."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import libcst as cst

from gradcheck_lint.analyses.layers import called_function
from gradcheck_lint.analyses.object_uses import argument_for
from gradcheck_lint.model.flow import Backward, Forward, Step
from gradcheck_lint.model.syntax import (
    assigned_once,
    boolean,
    dotted_name,
    small_statements,
    walk,
)
from gradcheck_lint.rules._rule import Violation
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel
    from gradcheck_lint.model.scopes import FunctionScope

__all__ = ["decided_again"]


class _Decision(NamedTuple):
    """Every parameter of the model ``path`` gets a ``requires_grad`` of its own at ``node``."""

    node: cst.CSTNode
    path: str
    rule: cst.BaseExpression


def decided_again(function: FunctionModel) -> Iterator[Violation]:
    """Yield a decision for all parameters that undoes another, before anything was trained."""
    found = list(_decisions(function))
    if len(found) < 2:  # noqa: PLR2004 - a decision and the one before
        return
    order = {id(node): place for place, node in enumerate(walk(function.scope.node))}
    uses = [
        order.get(id(event.node), 0)
        for event in function.events()
        if isinstance(event, (Forward, Backward, Step))
    ]
    found.sort(key=lambda decision: order[id(decision.node)])
    for first, again in pairwise(found):
        between = range(order[id(first.node)], order[id(again.node)])
        if first.path != again.path or any(place in between for place in uses):
            continue
        if boolean(first.rule) is None and not _names(first.rule) <= _names(again.rule):
            yield Violation(
                again.node,
                f"this decides for every parameter of `{again.path}` whether it is trained, so "
                "what was chosen before has no effect",
                Severity.WARNING,
                "freeze first, and put in or thaw what is to be trained afterwards",
                ((first.node, "chosen here"),),
            )


def _names(rule: cst.BaseExpression) -> frozenset[str]:
    """Return the texts that a rule looks for in the names of parameters."""
    return frozenset(node.value for node in walk(rule) if type(node) is cst.SimpleString)


def _decisions(function: FunctionModel) -> Iterator[_Decision]:
    """Yield the decisions in the statements of a body that run whenever it does."""
    node = function.scope.node
    for statement in node.body if isinstance(node, cst.Module) else node.body.body:
        if type(statement) is cst.For:
            made = _decided_in(statement)
            if made is not None:
                yield _Decision(statement, *made)
        elif type(statement) is cst.SimpleStatementLine:
            yield from _by_calls(statement, function)


def _by_calls(statement: cst.SimpleStatementLine, function: FunctionModel) -> Iterator[_Decision]:
    for node in walk(statement):
        called = called_function(node, function) if type(node) is cst.Call else None
        if called is None or type(node) is not cst.Call or called.words.isdisjoint(_FLAG):
            continue
        for path, rule in _decided_by(called):
            given = dotted_name(argument_for(path, node, called))
            if given is not None:
                yield _Decision(node, given, rule)


_FLAG = frozenset({"requires_grad", "requires_grad_"})


def _decided_by(called: FunctionScope) -> Iterator[tuple[str, cst.BaseExpression]]:
    """Yield the parameters of a function for all of whose parameters it decides."""
    assert type(called.node) is cst.FunctionDef
    for node in called.node.body.body:
        made = _decided_in(node) if type(node) is cst.For else None
        if made is not None:
            yield made


def _decided_in(loop: cst.For) -> tuple[str, cst.BaseExpression] | None:
    """Return the model, and the rule, of a loop that sets ``requires_grad`` in each turn."""
    over = loop.iter
    if type(over) is not cst.Call or over.args or type(over.func) is not cst.Attribute:
        return None
    path = dotted_name(over.func.value)
    if over.func.attr.value not in {"parameters", "named_parameters"} or path is None:
        return None
    if any(isinstance(node, (cst.Continue, cst.Break)) for node in walk(loop.body)):
        return None
    for statement in small_statements(loop.body):
        rule = _rule_of(statement)
        if rule is not None and not _reads_flag(rule):
            return path, rule
    return None


def _rule_of(statement: cst.BaseSmallStatement) -> cst.BaseExpression | None:
    """Return what ``requires_grad`` is set to."""
    target, value = assigned_once(statement)
    if type(target) is cst.Attribute and target.attr.value == "requires_grad":
        return value
    call = statement.value if type(statement) is cst.Expr else None
    if type(call) is cst.Call and type(call.func) is cst.Attribute and len(call.args) == 1:
        return call.args[0].value if call.func.attr.value == "requires_grad_" else None
    return None


def _reads_flag(rule: cst.BaseExpression) -> bool:
    return any(
        type(node) is cst.Attribute and node.attr.value == "requires_grad" for node in walk(rule)
    )
