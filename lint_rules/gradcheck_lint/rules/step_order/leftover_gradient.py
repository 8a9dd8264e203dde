"""GCS309: another loss's gradient is still there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gradcheck_lint.analyses.hidden_effects import ZEROING, may_act_unseen
from gradcheck_lint.analyses.repeated_calls import repeats, steps_for_others
from gradcheck_lint.model.flow import (
    Backward,
    Call,
    Event,
    Jump,
    JumpKind,
    Return,
    Step,
    ZeroGrad,
)
from gradcheck_lint.model.scopes import Part
from gradcheck_lint.rules._rule import Rule, Violation
from gradcheck_lint.rules.step_order.protocol import problems
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel
    from gradcheck_lint.model.scopes import FunctionScope


class LeftoverGradient(Rule):
    """An optimizer also applies what another optimizer's loss has left in its gradients."""

    entry = catalogue.LEFTOVER_GRADIENT

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield every step whose gradients hold a loss that another step came after."""
        if Part.BACKWARD in function.scope.parts and not function.runs_in_engine:
            yield from _left_by_exits(function)
        for problem in problems(function, self.entry.code):
            step = problem.event
            assert isinstance(step, Step)
            foreign, own = problem.others
            receiver = step.receiver or "the optimizer"
            yield Violation(
                step.node,
                f"the gradients of `{receiver}` hold what another optimizer's loss has left "
                f"in them beside its own: it steps with the sum of both{problem.reservation}",
                problem.severity,
                f"call `{receiver}.zero_grad()` between the two, or step before the other loss",
                ((foreign.node, "left here"), (own.node, "its own loss")),
            )


def _left_by_exits(function: FunctionModel) -> Iterator[Violation]:
    """Yield what leaves a loop after backward() and before the step and the reset that follow."""
    events = list(function.events())
    for index, backward in enumerate(events):
        if not isinstance(backward, Backward) or backward.partial or not backward.loops:
            continue
        if any(isinstance(e, ZeroGrad) or _may_reset(e, function) for e in events[:index]):
            continue
        for place, leaving in enumerate(events[index:], start=index):
            if not _leaves(leaving) or leaving.loops != backward.loops:
                continue
            if leaving.arms[: len(backward.arms)] != backward.arms:
                continue
            between = [e for e in events[index:place] if leaving.arms[: len(e.arms)] == e.arms]
            if any(isinstance(e, Step) or _may_reset(e, function) for e in between):
                continue
            if any(isinstance(e, ZeroGrad) for e in between):
                continue
            later = [e for e in events[place:] if e.loops == backward.loops]
            step = next((e for e in later if isinstance(e, Step)), None)
            comes_back = repeats(function) or steps_for_others(function)
            if isinstance(leaving, Jump):
                comes_back = comes_back or len(backward.loops) > 1
            if step is None or leaving.arms == backward.arms or not comes_back:
                continue
            if not any(isinstance(e, ZeroGrad) for e in later) or may_act_unseen(function, ZEROING):
                continue
            yield Violation(
                leaving.node,
                "this leaves the loop with the gradients of the backward() before it, which no "
                "step uses and nothing zeroes: the next backward() adds to them",
                Severity.WARNING,
                "zero them here as well, or before each backward()",
                ((backward.node, "left by this"), (step.node, "the step that is passed over")),
            )


def _leaves(event: Event) -> bool:
    return isinstance(event, Return) or (isinstance(event, Jump) and event.how is JumpKind.BREAK)


def _may_reset(event: Event, function: FunctionModel) -> bool:
    """Tell whether this is a call that may clear gradients somewhere else."""
    if not isinstance(event, Call):
        return False
    if event.function is not None:
        return _resets(event.function, function, set())
    return not event.harmless and bool(event.handed & function.holders)


def _resets(scope: FunctionScope, function: FunctionModel, seen: set[int]) -> bool:
    """Tell whether a function of the file, or one that it calls, may clear gradients."""
    if not _RESETTING.isdisjoint(scope.words):
        return True
    seen.add(id(scope))
    return any(
        isinstance(event, Call)
        and event.function is not None
        and id(event.function) not in seen
        and _resets(event.function, function, seen)
        for event in function.module.function(scope).events()
    )


_RESETTING: Final = frozenset({"zero_grad", "grad", "_grad", "step", "setattr", "getattr"})
