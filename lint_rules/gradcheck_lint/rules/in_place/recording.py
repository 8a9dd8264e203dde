"""Tell whether what is done at some place may ever be differentiated."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import libcst as cst

from gradcheck_lint.analyses.hidden_effects import FREEZING, may_act_elsewhere
from gradcheck_lint.model.flow import Branch, Event, GradMode, Jump, Loop, Return
from gradcheck_lint.model.syntax import decorator_name, dotted_name
from gradcheck_lint.rules.in_place.docstrings import head_of

if TYPE_CHECKING:
    from gradcheck_lint.model.flow import Block
    from gradcheck_lint.model.module import FunctionModel


def is_for_evaluation(function: FunctionModel, event: Event) -> bool:
    """Tell whether an event takes place where nobody trains: by callers, decorators or a flag."""
    node = function.scope.node
    if not isinstance(node, cst.Module) and any(map(_evaluates, node.decorators)):
        return True
    if not isinstance(node, cst.Module) and _SAYS_SO.search(head_of(function)) is not None:
        return True
    if event.mode in {GradMode.AMBIENT, GradMode.UNKNOWN}:
        # Some other context around it is not what turns recording on again.
        callers = function.module.modes_of_callers(function.scope)
        if callers and GradMode.ENABLED not in callers:
            return True
    return _is_in_evaluation(function.block, event) is True


def may_be_frozen(function: FunctionModel) -> bool:
    """Tell whether another function that this one reaches may turn `requires_grad` off."""
    return function.module.may_freeze and may_act_elsewhere(function, FREEZING)


def exclude(first: Event, second: Event) -> bool:
    """Tell whether two events are in different arms of one branch."""
    arms = dict(first.arms)
    return any(arms.get(branch, arm) != arm for branch, arm in second.arms)


def _evaluates(decorator: cst.Decorator) -> bool:
    return _EVALUATING.search(decorator_name(decorator).lower()) is not None


_SAYS_SO: Final = re.compile(
    rb"(?i)\bonly (?:for|at|in|during|used for) (?:infer|eval)|\binference[- ]only"
)
"""How comments say that nobody trains what a function does."""
_EVALUATING: Final = re.compile("infer|eval|predict|no_?grad|frozen")


def _is_in_evaluation(block: Block, event: Event) -> bool | None:
    """Tell whether only evaluation leads to an event; None where a block has no such event."""
    trained_away = False
    for item in block.items:
        found: bool | None = None
        if item is event:
            found = False
        elif isinstance(item, Branch):
            trains = _trains(item.test)
            for place, arm in enumerate(item.arms):
                inside = _is_in_evaluation(arm, event)
                if inside is not None:
                    found = inside or (trains is not None and trains is (place > 0))
            trained_away |= trains is True and bool(item.arms) and _leaves(item.arms[0])
        elif isinstance(item, Loop):
            found = _is_in_evaluation(item.body, event)
            if found is None:
                found = _is_in_evaluation(item.otherwise, event)
        if found is not None:
            return found or trained_away
    return None


def _leaves(block: Block) -> bool:
    return bool(block.items) and isinstance(block.items[-1], (Return, Jump))


def _trains(test: cst.BaseExpression | None) -> bool | None:
    """Tell whether a condition holds in training alone, or in evaluation alone (False)."""
    if type(test) is cst.UnaryOperation and type(test.operator) is cst.Not:
        inner = _trains(test.expression)
        return None if inner is None else not inner
    named = test.func if type(test) is cst.Call else test
    last = (dotted_name(named) or "").rpartition(".")[2]
    if last in _TRAINING:
        return True
    return False if last in _EVALUATION else None


_TRAINING: Final = frozenset({"training", "is_training", "is_grad_enabled"})
_EVALUATION: Final = frozenset(
    {"export", "is_in_onnx_export", "is_tracing", "is_scripting", "inference", "eval_mode"}
)
