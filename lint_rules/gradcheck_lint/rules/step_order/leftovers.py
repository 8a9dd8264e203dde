"""Judge whether a step applies what the loss of another optimizer has left in its gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from gradcheck_lint.analyses.callers import models_of_step
from gradcheck_lint.analyses.opaque_calls import ZEROES
from gradcheck_lint.model.flow import Backward, Freeze, Step, ZeroGrad
from gradcheck_lint.model.paths import in_caller
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

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gradcheck_lint.model.module import FunctionModel
    from gradcheck_lint.model.paths import Occurrence, Path
    from gradcheck_lint.model.values import Values


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
