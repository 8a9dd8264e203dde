"""Judge where gradients are clipped along a path."""

# ruff: noqa: PLR0911 - each return is a verdict of its own

from __future__ import annotations

from typing import TYPE_CHECKING

from gradcheck_lint.analyses.opaque_calls import DIFFERENTIATES, UNSCALES
from gradcheck_lint.model.flow import (
    Backward,
    Step,
    Unscale,
    ZeroGrad,
)
from gradcheck_lint.rules.step_order.problem import ABSENT, Problem, Unit, last_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gradcheck_lint.model.paths import Occurrence, Path


def judge_clip(path: Path, index: int, unit: Unit) -> tuple[Problem | None, ...]:
    """Judge a clipping on one path: GCS304 and GCS305."""
    item = path[index]
    before = [other for other in path[:index] if _is_milestone(other)]
    after = [other for other in path[index + 1 :] if _is_milestone(other)]
    verdicts: list[Problem | None] = []
    if item.turn == 0:
        problem = _useless_clip(item, before, after, unit)
        if problem is not None and problem is not ABSENT:
            # What may give the clipping an effect stands next to it.
            start = path.index(before[-1]) if before else 0
            end = path.index(after[0]) if after else len(path)
            problem = problem.unless(path[start:end], DIFFERENTIATES)
        verdicts.append(problem)
    else:
        verdicts.append(ABSENT)
    if item.turn == unit.turn:
        verdicts.append(_scaled_clip(path, index))
    return tuple(verdicts)


def _is_milestone(item: Occurrence) -> bool:
    return isinstance(item.event, (Backward, Step, ZeroGrad))


def _useless_clip(
    item: Occurrence, before: Sequence[Occurrence], after: Sequence[Occurrence], unit: Unit
) -> Problem | None:
    previous = before[-1] if before else None
    following = after[0] if after else None
    if following is None:
        zeroed = any(isinstance(other.event, ZeroGrad) for other in before)
        if unit.loop is None and previous and isinstance(previous.event, Step) and zeroed:
            return Problem("GCS304", "after-step", item.event, item.owner, (previous.event,))
        return None
    if isinstance(following.event, Step):
        # A step on some paths only may end a window: the other paths decide.
        is_rarer = len(following.leading.arms) > len(item.leading.arms)
        return ABSENT if is_rarer else None
    if previous is not None and isinstance(previous.event, Step):
        return Problem(
            "GCS304", "after-step", item.event, item.owner, (previous.event, following.event)
        )
    if previous is None or isinstance(previous.event, ZeroGrad):
        if not any(isinstance(other.event, Step) for other in after):
            return None
        if previous is None and unit.loop is None:
            return None
        return Problem("GCS304", "before-backward", item.event, item.owner, (following.event,))
    if isinstance(following.event, Backward) and following.event is previous.event:
        if any(isinstance(other.event, Step) for other in after):
            return Problem(
                "GCS304",
                "micro-batch",
                item.event,
                item.owner,
                (following.event,),
                certain=False,
            )
        return ABSENT
    if isinstance(following.event, ZeroGrad):
        return ABSENT
    return None


def _scaled_clip(path: Path, index: int) -> Problem | None:
    item = path[index]
    before, after = path[:index], path[index + 1 :]
    last = last_of(before, Backward)
    if last is None:
        return None
    backward = before[last].event
    assert isinstance(backward, Backward)
    if not backward.scaled:
        return None
    if any(isinstance(other.event, Unscale) for other in before[last:]):
        return None
    late: tuple[Unscale, ...] = ()
    for other in after:
        if isinstance(other.event, Unscale):
            late = (*late, other.event)
        elif isinstance(other.event, Step):
            if not other.event.scaler:
                return None
            others = (backward, other.event, *late)
            problem = Problem("GCS305", "scaled", item.event, item.owner, others)
            return problem.unless(path[last : path.index(other)], UNSCALES)
    return None
