"""Find settings of a layer that it overwrites in evaluation mode, and has no more in training."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import libcst as cst

from gradcheck_lint.model.syntax import assigned_pairs, dotted_name, small_statements

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel, ModuleModel

__all__ = ["OverwrittenSetting", "overwritten_settings"]


class OverwrittenSetting(NamedTuple):
    """Where a setting gets the number that evaluation mode takes, and how it is called."""

    node: cst.CSTNode
    name: str


def overwritten_settings(function: FunctionModel) -> Iterator[OverwrittenSetting]:
    """Yield the attributes that a pass in evaluation mode overwrites for all that follow.

    The number is for evaluation, for the layer asks its own mode; what it was set to at first is
    what training used. Whatever else sets the attribute may put it back.
    """
    scope, module = function.scope, function.module
    owner, first = scope.owner, scope.first_parameter
    if owner is None or "training" not in scope.words or first is None:
        return
    if scope.name.rpartition(".")[2] in _SETTING_MODES:
        return
    if not module.scopes.derives_from(owner, "torch.nn.Module"):
        return
    for found in _set_in_evaluation(function, f"{first}.training"):
        base, _, attribute = found.name.rpartition(".")
        if base == first and _is_set_at_first(function, attribute):
            yield found


_SETTING_MODES = frozenset({"__init__", "train", "eval"})


def _set_in_evaluation(function: FunctionModel, mode: str) -> Iterator[OverwrittenSetting]:
    """Yield what is given a number in evaluation mode, and in training what it is already."""
    for node in function.scope.nodes_of(cst.Assign, cst.If):
        if type(node) is cst.Assign:
            for target, value in assigned_pairs(node):
                name = dotted_name(target)
                if name is None or type(value) is not cst.IfExp:
                    continue
                training, evaluation = _by_mode(value.test, value.body, value.orelse, mode)
                if dotted_name(training) == name and _is_number(evaluation):
                    yield OverwrittenSetting(node, name)
        elif type(node) is cst.If:
            training, evaluation = _by_mode(node.test, node.body, node.orelse, mode)
            kept = {name for name, _, _ in _given(training)}
            for name, value, statement in _given(evaluation):
                if name not in kept and _is_number(value):
                    yield OverwrittenSetting(statement, name)


def _given(
    arm: cst.CSTNode | None,
) -> Iterator[tuple[str, cst.BaseExpression, cst.CSTNode]]:
    """Yield what one arm of an ``if`` gives to which name, and the statement that does."""
    body = arm.body if type(arm) is cst.Else else arm
    for statement in small_statements(body) if isinstance(body, cst.BaseSuite) else ():
        for target, value in assigned_pairs(statement):
            name = dotted_name(target)
            if name is not None:
                yield name, value, statement


def _is_number(node: cst.CSTNode | None) -> bool:
    return isinstance(node, (cst.Integer, cst.Float))


def _is_set_at_first(function: FunctionModel, attribute: str) -> bool:
    """Return whether a constructor alone sets an attribute, to a setting of its own or a number."""
    setters, owner = _setters(function.module)[attribute], function.scope.owner
    begun = [
        value
        for each in function.module.scopes.lineage(owner)
        if (method := each.methods.get("__init__")) is not None
        for target, value in method.assignments
        if dotted_name(target) == f"{method.first_parameter}.{attribute}"
    ]
    return (
        setters == len(begun) + 1
        and len(begun) == 1
        and (_is_number(begun[0]) or type(begun[0]) in {cst.Name, cst.Attribute})
    )


def _setters(module: ModuleModel) -> Counter[str]:
    """Return how often the file sets an attribute of each name, of whatever."""
    key = "attributes that are set"
    if key not in module.memo:
        module.memo[key] = Counter(
            target.attr.value
            for function in module.functions()
            for target in (
                *(target for target, _ in function.scope.assignments),
                *(node.target for node in function.scope.nodes_of(cst.AugAssign)),
            )
            if type(target) is cst.Attribute
        )
    found: Counter[str] = module.memo[key]
    return found


def _by_mode(
    test: cst.BaseExpression, then: cst.CSTNode, other: cst.CSTNode | None, mode: str
) -> tuple[cst.CSTNode | None, cst.CSTNode | None]:
    """Return what is done in training and in evaluation, where a test is of the mode alone."""
    if dotted_name(test) == mode:
        return then, other
    is_negated = type(test) is cst.UnaryOperation and type(test.operator) is cst.Not
    if is_negated and dotted_name(test.expression) == mode:  # type: ignore[attr-defined]
        return other, then
    return None, None
