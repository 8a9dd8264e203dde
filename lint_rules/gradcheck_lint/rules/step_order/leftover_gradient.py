"""GCS309: another loss's gradient is still there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import libcst as cst

from gradcheck_lint.analyses.callers import models_of_step
from gradcheck_lint.analyses.hidden_effects import ZEROING, may_act_unseen
from gradcheck_lint.analyses.repeated_calls import repeats, steps_for_others
from gradcheck_lint.model.flow import (
    Backward,
    Call,
    Event,
    Freeze,
    Jump,
    JumpKind,
    Return,
    Step,
    ZeroGrad,
)
from gradcheck_lint.model.paths import Occurrence
from gradcheck_lint.model.scopes import Part
from gradcheck_lint.model.values import (
    NO_SITES,
    Origin,
    Values,
    held_by,
    mentioned_by,
    sites,
    through_all,
)
from gradcheck_lint.rules._rule import Rule, Violation
from gradcheck_lint.rules.step_order.problem import covers
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gradcheck_lint.model.module import FunctionModel
    from gradcheck_lint.model.scopes import FunctionScope


class LeftoverGradient(Rule):
    """An optimizer also applies what another optimizer's loss has left in its gradients."""

    entry = catalogue.LEFTOVER_GRADIENT

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield every step whose gradients hold a loss that another step came after."""
        if Part.BACKWARD not in function.scope.parts:
            return
        if function.runs_in_engine:
            return
        yield from _left_by_exits(function)
        events = [
            event
            for event in function.events()
            if isinstance(event, (Backward, Step, ZeroGrad)) or _may_reset(event, function)
        ]
        for index, event in enumerate(events):
            owned = models_of_step(function, event) if isinstance(event, Step) else NO_SITES
            if not isinstance(event, Step) or not owned or _may_freeze(function, owned):
                continue
            found = _leftover(events[:index], event, function, owned)
            if found is None and _comes_again(event, function):
                around = [*events[index:], *events[:index]]
                around = [known for known in around if known is not event]
                found = _leftover(around, event, function, owned)
                if found is not None and not _is_reset(around, event, function, found[0]):
                    continue  # nothing resets this optimizer at all, which is another mistake
            if found is None or may_act_unseen(function, ZEROING):
                continue
            foreign, own = found
            receiver = event.receiver or "the optimizer"
            yield Violation(
                event.node,
                f"the gradients of `{receiver}` still hold what another loss left in them before "
                "another optimizer's step: it steps with the sum of both",
                Severity.WARNING,
                f"call `{receiver}.zero_grad()` right before its own backward()",
                ((foreign.node, "left here"), (own.node, "added to here")),
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


def _comes_again(step: Step, function: FunctionModel) -> bool:
    """Tell whether a step follows what comes after it, in the next iteration or call."""
    if step.loops:
        return len(step.loops) == 1
    return repeats(function) or steps_for_others(function)


def _is_reset(
    around: Sequence[Event], step: Step, function: FunctionModel, foreign: Backward
) -> bool:
    """Tell whether the gradients are reset between a step and the next foreign backward."""
    used = Occurrence(step, step, function, {})
    return any(
        isinstance(event, ZeroGrad)
        and covers(Occurrence(event, event, function, {}), used) is not False
        for event in around[: around.index(foreign)]
    )


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


def _may_freeze(function: FunctionModel, owned: frozenset[int]) -> bool:
    """Tell whether the file may turn off the gradients of a model that an optimizer has."""
    return any(
        isinstance(event, Freeze)
        and event.wanted is not True
        and not _is_of_other_model(event.values, known, owned)
        for known in (function.module.functions() if function.module.may_freeze else ())
        for event in known.events()
    )


def _is_of_other_model(values: Values, function: FunctionModel, owned: frozenset[int]) -> bool:
    """Tell whether what is frozen is, or is part of, something else that a function has made."""
    made = {
        value.site
        for held in (*function.bindings.values(), values)
        for value in held
        if type(value.node) is cst.Call and value.origin in {Origin.CALL, Origin.OTHER}
    }
    reached = sites(values) | held_by(values)
    return not reached.isdisjoint(made) and owned.isdisjoint(reached | mentioned_by(values))


def _leftover(
    before: Sequence[Event], step: Step, function: FunctionModel, owned: frozenset[int]
) -> tuple[Backward, Backward] | None:
    """Return the other loss's backward and the own one, if no reset lies between them."""
    used = Occurrence(step, step, function, {})
    own: Backward | None = None
    stepped = False
    for event in reversed(before):
        if isinstance(event, Call):
            return None
        if event.loops != step.loops or event.arms != step.arms or event.expects_error:
            return None
        if isinstance(event, ZeroGrad):
            if covers(Occurrence(event, event, function, {}), used) is not False:
                return None
        elif isinstance(event, Step):
            if sites(event.values) & sites(step.values):
                return None
            stepped = own is not None
        elif isinstance(event, Backward):
            if event.partial or not through_all(event.values) & owned:
                continue
            if own is None:
                own = event
            elif stepped:
                # Whoever retains a graph means to add up what comes of it.
                return None if event.retains_graph else (event, own)
    return None
