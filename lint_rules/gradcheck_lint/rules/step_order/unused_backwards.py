"""Find backwards between the step that they are for and the reset of the next iteration."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import libcst as cst

from gradcheck_lint.analyses.callers import models_of_step
from gradcheck_lint.analyses.hidden_effects import STEPPING, may_act_unseen
from gradcheck_lint.analyses.repeated_calls import repeats, steps_for_others
from gradcheck_lint.model.flow import Backward, Call, Event, Freeze, Step, ZeroGrad
from gradcheck_lint.model.paths import ACTS, Occurrence
from gradcheck_lint.model.scopes import Part
from gradcheck_lint.model.syntax import boolean
from gradcheck_lint.model.values import held_by, mentioned_by, sites, through_all
from gradcheck_lint.rules.step_order.problem import covers
from gradcheck_lint.rules.step_order.taken_gradients import takes_gradients

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gradcheck_lint.model.flow import Loop
    from gradcheck_lint.model.module import FunctionModel
    from gradcheck_lint.model.values import Values

__all__ = ["UnusedBackward", "unused_backwards"]


class UnusedBackward(NamedTuple):
    """A backward, the step before it, and the reset that its gradients are thrown away by."""

    backward: Backward
    step: Step
    reset: ZeroGrad


def unused_backwards(function: FunctionModel) -> Iterator[UnusedBackward]:
    """Yield the backwards of an iteration whose gradients no step ever uses.

    They come after the step of the model that they reach, and before its next reset. One that the
    step of another optimizer follows is for that one, unless that has a backward of its own after
    it, and this one does not reach its model, or finds it frozen. Who reads gradients may want
    them for themselves.
    """
    words = function.scope.words
    if Part.BACKWARD not in function.scope.parts or not _READING.isdisjoint(words):
        return
    if function.runs_in_engine:
        return
    for loop, events in _turns(function):
        if any(map(_may_act, events)):
            continue
        for index, step in enumerate(events):
            if isinstance(step, Step) and _is_plain(step, loop) and not step.closure:
                found = _unused(events, index, loop, function)
                if found is None or takes_gradients(function, events):
                    continue
                if not may_act_unseen(function, STEPPING):
                    yield found


_READING = frozenset({"grad", "_grad", "register_hook", "getattr", "setattr"})


def _turns(function: FunctionModel) -> Iterator[tuple[Loop | None, list[Event]]]:
    """Yield what each loop does in an iteration, and a function that is called again and again."""
    for loop in function.loops():
        yield loop, [event for event in loop.body.events() if _matters(event)]
    if repeats(function) or steps_for_others(function):
        yield None, [event for event in function.events() if _matters(event)]


def _matters(event: Event) -> bool:
    return isinstance(event, (Backward, Call, Freeze, Step, ZeroGrad))


def _may_act(event: Event) -> bool:
    """Return whether a call may do what a step or a reset does."""
    if not isinstance(event, Call):
        return False
    if event.function is None:
        return not event.harmless and not event.is_used
    return any(map(ACTS, event.function.words)) and not _freezes(event)


def _freezes(event: Call) -> bool:
    """Return whether a function of the file sets ``requires_grad``, and nothing else."""
    assert event.function is not None
    acts = {word for word in event.function.words if ACTS(word)}
    return bool(acts) and acts <= {"requires_grad", "requires_grad_"}


def _is_plain(event: Event, loop: Loop | None) -> bool:
    """Return whether an event happens once in each iteration."""
    if event.expects_error:
        return False
    if loop is None:
        return not event.loops and not event.arms
    return event.loops[-1:] == (loop.identity,) and event.arms == loop.arms


def _unused(
    events: Sequence[Event], index: int, loop: Loop | None, function: FunctionModel
) -> UnusedBackward | None:
    """Return the backward of an iteration that comes too late for one of its steps."""
    step = events[index]
    assert isinstance(step, Step)
    owned = models_of_step(function, step)
    used = Occurrence(step, step, function, {})
    late: Backward | None = None
    later = [*events[index + 1 :], *events[:index]]
    for place, event in enumerate(later):
        if isinstance(event, ZeroGrad):
            covered = covers(Occurrence(event, event, function, {}), used)
            if covered is False:
                continue
            is_clear = late is not None and covered is True and event.clears
            is_own = any(_reaches(other, owned) for other in later[place + 1 :])
            if late is None or not (is_clear and is_own and _is_plain(event, loop)):
                return None
            return UnusedBackward(late, step, event)
        if isinstance(event, Step):
            others = models_of_step(function, event)
            if not others or others & owned:
                return None
            if late is None:
                continue
            has_own = any(_reaches(each, others) for each in later[later.index(late) + 1 : place])
            is_apart = not _reaches(late, others) or _is_frozen(
                others, events[: events.index(late)]
            )
            if not (has_own and is_apart):
                return None
        elif _reaches(event, owned) and _is_plain(event, loop):
            assert isinstance(event, Backward)
            late = event
    return None


def _reaches(event: Event, models: frozenset[int]) -> bool:
    """Return whether an event is the backward of a loss that goes through one of these models."""
    if not isinstance(event, Backward) or event.partial or event.seeded:
        return False
    return bool(through_all(event.values) & models)


def _is_frozen(models: frozenset[int], before: Sequence[Event]) -> bool:
    """Return whether the last that is done to a model's ``requires_grad`` is to turn it off."""
    wanted = [
        want
        for event in before
        for values, want in _switched(event)
        if models & (sites(values) | held_by(values) | mentioned_by(values))
    ]
    return bool(wanted) and wanted[-1] is False


def _switched(event: Event) -> Iterator[tuple[Values, bool | None]]:
    """Yield whose gradients an event turns on or off: itself, or ``set_grads(model, False)``."""
    if isinstance(event, Freeze):
        yield event.values, event.wanted
    elif isinstance(event, Call) and event.function is not None and type(event.node) is cst.Call:
        told = {boolean(argument.value) for argument in event.node.args} - {None}
        want = told.pop() if len(told) == 1 else None
        for _, values in event.arguments if _freezes(event) else ():
            yield values, want
