"""Judge what is left in gradients: by the loss of another optimizer, or by one no step uses."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final

import libcst as cst

from gradcheck_lint.analyses.callers import models_of_step
from gradcheck_lint.analyses.opaque_calls import STEPS, ZEROES
from gradcheck_lint.model.flow import Backward, Call, Freeze, Step, ZeroGrad
from gradcheck_lint.model.paths import ACTS, in_caller
from gradcheck_lint.model.syntax import boolean
from gradcheck_lint.model.values import (
    Kind,
    Origin,
    all_are,
    held_by,
    mentioned_by,
    sites,
    through_all,
)
from gradcheck_lint.rules.step_order.problem import ABSENT, Problem, covers, same
from gradcheck_lint.rules.step_order.taken_gradients import takes_gradients

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gradcheck_lint.model.flow import Event
    from gradcheck_lint.model.module import FunctionModel
    from gradcheck_lint.model.paths import Occurrence, Path
    from gradcheck_lint.model.scopes import FunctionScope
    from gradcheck_lint.model.values import Values
    from gradcheck_lint.rules.step_order.problem import Unit


def judge_leftover(path: Path, index: int, function: FunctionModel) -> Problem | None:
    """Judge whether a step uses the sum of its own loss and another optimizer's: GCS309.

    Between the two losses, the optimizer of the first steps; or the gradients of the optimizer of
    the second are reset, whose model the first does not reach.
    """
    item = path[index]
    step = item.event
    assert isinstance(step, Step)
    owned = _known_to_caller(models_of_step(item.owner, step), item)
    if not owned or step.expects_error:
        return None
    since = _since_reset(path, index)
    if since is None:
        return ABSENT
    losses = [place for place, other in enumerate(since) if reached_by(other) & owned]
    if len(losses) < 2:  # noqa: PLR2004 - its own, and another
        return None
    first, second = losses[-2:]
    foreign = _foreign(since, first, second, path[index:])
    if foreign is None or _may_freeze(function, owned):
        return None
    own = since[first if foreign == second else second].event
    others = (since[foreign].event, own)
    problem = Problem("GCS309", "mixed", step, item.owner, others, certain=False)
    return problem.unless(since[first:], ZEROES)


def judge_unused(path: Path, index: int, unit: Unit) -> tuple[Problem | None, ...]:
    """Judge whether a reset discards the gradients of a backward that came after the step: GCS302.

    One that the step of another optimizer follows is for that one, unless that has a backward of
    its own after it, and this one does not reach its model, or finds it frozen. Who reads
    gradients may want them for themselves.
    """
    item = path[index]
    reset, function = item.event, unit.function
    assert isinstance(reset, ZeroGrad)
    if item.turn != 1:
        return (ABSENT,)
    found = _step_before(path, index)
    if found is None or not reset.clears or not _READING.isdisjoint(function.scope.words):
        return (None,)
    step, since = found
    owned = models_of(step, getattr(step.event, "values", frozenset()))
    late = _unused(since, owned)
    following = itertools.takewhile(
        lambda other: not (isinstance(other.event, Step) and covers(item, other)), path[index + 1 :]
    )
    around = (*following, *(_since_reset(path, path.index(step)) or ()))
    if late is None or not any(reached_by(other) & owned for other in around):
        return (None,)
    events = function.events() if unit.loop is None else unit.loop.body.events()
    if takes_gradients(function, events):
        return (None,)
    others = (step.event, reset)
    problem = Problem("GCS302", "unused", late.event, late.owner, others, certain=False)
    return (problem.unless(since, STEPS),)


_READING: Final = frozenset({"grad", "_grad", "register_hook", "getattr", "setattr"})


def _step_before(path: Path, index: int) -> tuple[Occurrence, Sequence[Occurrence]] | None:
    """Return the last step whose gradients a reset clears first, and what lies between."""
    reset = path[index]
    for start in range(index - 1, -1, -1):
        step = path[start]
        if isinstance(step.event, Step) and covers(reset, step) is True:
            since = path[start + 1 : index]
            is_cleared = any(
                isinstance(other.event, ZeroGrad) and covers(other, step) is not False
                for other in since
            )
            is_odd = step.event.closure or step.event.expects_error
            return None if is_cleared or is_odd else (step, since)
    return None


def _unused(since: Sequence[Occurrence], owned: frozenset[int]) -> Occurrence | None:
    """Return the backward that comes too late for a step, among what follows the step."""
    late: int | None = None
    for place, other in enumerate(since):
        event = other.event
        if isinstance(event, Backward) and not event.seeded and reached_by(other) & owned:
            if event.retains_graph:
                return None  # of what else comes of this graph, another step may make use
            late = place
        elif isinstance(event, Step):
            others = models_of(other, event.values)
            if not others or others & owned:
                return None
            if late is None:
                continue
            has_own = any(reached_by(each) & others for each in since[late + 1 : place])
            is_apart = not reached_by(since[late]) & others or _is_frozen(others, since[late])
            if not (has_own and is_apart):
                return None
    return None if late is None else since[late]


def _since_reset(path: Path, index: int) -> Sequence[Occurrence] | None:
    """Return what lies between the last reset or step of an optimizer and a step of it.

    None stands for one that a loop over several optimizers makes again, and for one before which
    nothing is reset.
    """
    item = path[index]
    assert isinstance(item.event, Step)
    for start in range(index - 1, -1, -1):
        other = path[start]
        if isinstance(other.event, ZeroGrad) and covers(other, item) is not False:
            return path[start + 1 : index]
        if isinstance(other.event, Step) and same(
            other, other.event.values, item, item.event.values
        ):
            return None
    return None


def _foreign(
    since: Sequence[Occurrence], first: int, second: int, after: Sequence[Occurrence]
) -> int | None:
    """Return the place of the loss that is another optimizer's, None if that is not known."""
    earlier, later = since[first], since[second]
    assert isinstance(earlier.event, Backward)
    if earlier.event.retains_graph:
        return None  # whoever retains a graph means to add up what comes of it
    between = since[first + 1 : second]
    if any(isinstance(other.event, Step) for other in between):
        return first
    for other in between:
        if not isinstance(other.event, ZeroGrad):
            continue
        begun = models_of(other, other.event.values)
        is_its_own = bool(reached_by(later) & begun) and not reached_by(earlier) & begun
        if is_its_own and any(
            isinstance(step.event, Step) and models_of(step, step.event.values) & begun
            for step in (*since[second:], *after)
        ):
            return second
    return None


def models_of(item: Occurrence, optimizers: Values) -> frozenset[int]:
    """Return the models whose parameters these optimizers have, as the caller knows them."""
    if not all_are(optimizers, Kind.OPTIMIZER):
        return frozenset()
    return _known_to_caller(held_by(optimizers) - sites(optimizers), item)


def reached_by(item: Occurrence) -> frozenset[int]:
    """Return the models that the loss of a backward() goes through, as the caller knows them."""
    event = item.event
    if not isinstance(event, Backward) or event.partial or event.expects_error:
        return frozenset()
    return _known_to_caller(through_all(event.values), item)


def _known_to_caller(known: Iterable[int], item: Occurrence) -> frozenset[int]:
    found: set[int] = set()
    for site in known:
        found.update(in_caller(site, item.binding, item.owner))
    return frozenset(found)


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


def _is_frozen(models: frozenset[int], backward: Occurrence) -> bool:
    """Return whether the last that is done to a model's ``requires_grad`` is to turn it off."""
    before = itertools.takewhile(lambda event: event is not backward.event, backward.owner.events())
    wanted = [
        want
        for event in before
        for values, want in _switched(event)
        if models
        & _known_to_caller(sites(values) | held_by(values) | mentioned_by(values), backward)
    ]
    return bool(wanted) and wanted[-1] is False


def _switched(event: Event) -> Iterator[tuple[Values, bool | None]]:
    """Yield whose gradients an event turns on or off: itself, or ``set_grads(model, False)``."""
    if isinstance(event, Freeze):
        yield event.values, event.wanted
    elif isinstance(event, Call) and event.function is not None and type(event.node) is cst.Call:
        told = {boolean(argument.value) for argument in event.node.args} - {None}
        want = told.pop() if len(told) == 1 else None
        for _, values in event.arguments if _freezes(event.function) else ():
            yield values, want


def _freezes(scope: FunctionScope) -> bool:
    """Return whether a function of the file sets ``requires_grad``, and nothing else."""
    acts = {word for word in scope.words if ACTS(word)}
    return bool(acts) and acts <= {"requires_grad", "requires_grad_"}
