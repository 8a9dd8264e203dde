"""Why the gradient of an accumulation window is not that of the full batch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gradcheck_suite.accumulation.vectors import Mix, mix_of
from gradcheck_suite.auditing.call_sites import CallSite

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gradcheck_suite.accumulation.runs import Step
    from gradcheck_suite.accumulation.vectors import Gradients

__all__ = ["Cause", "cause_of", "not_finite", "of_clipping", "rate_of", "timing_of"]

_LEAST_CLOSE, _MOST_CLOSE = 0.01, 0.1
"""Ratios and weights are told by name where they are so close, as far as rounding goes but within
these: what they tell is a small fraction or a whole number."""


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a step was given another gradient, and where.

    ``what`` follows "was given"; ``weights`` say how much of each micro-batch was in it.
    """

    kind: str
    what: str
    hint: str
    site: CallSite | None
    ratio: float | None = None
    weights: tuple[float, ...] = ()


def timing_of(step: Step, full: Step, number: int) -> Cause | None:
    """Return what is wrong with when it steps, or with what was there before its first backward."""
    seen, expected = len(step.backwards), number * len(full.backwards)
    if seen != expected and len(full.backwards):
        done = seen / len(full.backwards)
        return Cause(
            "timing",
            f"the gradient of {done:g} micro-batch{'' if done == 1 else 'es'} where a window has "
            f"{number}: it steps too {'early' if seen < expected else 'late'}",
            f"step where (index + 1) % {number} == 0, for an index that begins at 0",
            step.site,
        )
    if step.carried and not full.carried:
        return Cause(
            "carried",
            "the gradient of its window on top of what the window before had left: never cleared",
            "call zero_grad() after step()",
            step.site,
        )
    return None


def not_finite(step: Step) -> Cause:
    """Return what there is to say of a gradient that is not finite where the full batch's is."""
    return Cause(
        "non-finite",
        "a gradient with NaN or infinity in it, where that of the full batch is finite",
        "look for a micro-batch that is divided by the number of its elements, which may be none",
        step.backwards[-1] if step.backwards else step.site,
    )


def rate_of(step: Step, full: Step) -> Cause | None:
    """Return what is wrong with the learning rate of the first step."""
    if step.rates == full.rates:
        return None
    return Cause(
        "rate",
        f"a learning rate of {_shown(step.rates)}, where a full batch has {_shown(full.rates)}: "
        "the scheduler steps at each micro-batch",
        "call scheduler.step() after optimizer.step(), once for each window",
        step.site,
    )


def cause_of(
    step: Step, full: Gradients, parts: Sequence[Gradients], *, rounding: float
) -> Cause | None:
    """Return why the gradient is another one; None where it can't be that of the full batch.

    So it is where the gradient of the full batch is no sum over its micro-batches, and each counts
    the same: the samples of a batch depend on one another, as by the pairs of a contrastive loss.

    ``rounding`` is the part of the gradient's norm that rounding explains.
    """
    number = len(parts)
    close = min(max(rounding, _LEAST_CLOSE), _MOST_CLOSE)
    given, whole = mix_of(step.gradients, parts), mix_of(full, parts)
    is_sum = whole.rest <= close
    counts = whole.weights if is_sum and whole.is_certain else (1 / number,) * number
    if given.rest <= close:
        return _of_weights(step, given, counts, close, is_sum=is_sum)
    return _of_anything(step) if is_sum else None


def _of_weights(
    step: Step, given: Mix, counts: tuple[float, ...], close: float, *, is_sum: bool
) -> Cause | None:
    number = len(counts)
    ratios = [w / c if c else math.inf for w, c in zip(given.weights, counts, strict=True)]
    last = step.backwards[-1] if step.backwards else step.site
    if max(ratios) - min(ratios) <= close * max(map(abs, ratios)):
        ratio = sum(ratios) / number
        if abs(ratio - 1) <= close:
            return None if not is_sum else _of_anything(step)
        return _of_ratio(ratio, last, given.weights, close)
    greatest = max(map(abs, given.weights))
    there = [i for i, weight in enumerate(given.weights) if abs(weight) > close * greatest]
    if len(there) < number and given.is_certain:
        return Cause(
            "cleared",
            f"the gradient of {_counted(there, number)} alone: that of the others was cleared",
            "call zero_grad() once for each step, before the first backward() of a window",
            step.cleared or step.site,
            weights=given.weights,
        )
    if max(given.weights) - min(given.weights) <= close * greatest:
        return Cause(
            "weights",
            f"a gradient to which each micro-batch adds the same, where in the full batch they "
            f"count {', '.join(f'{each:.3g}' for each in counts)}: a mean over elements whose "
            "number differs between micro-batches",
            "divide the sum of each micro-batch by the number of elements in the whole window",
            last,
            weights=given.weights,
        )
    return _of_anything(step)


def _of_ratio(
    ratio: float, site: CallSite | None, weights: tuple[float, ...], close: float
) -> Cause:
    number = len(weights)
    if math.isclose(ratio, number, rel_tol=close):
        what = (
            f"{number} times the gradient of the full batch: the loss is not divided by the number "
            "of micro-batches"
        )
        hint = f"divide the loss of each micro-batch by {number} before backward()"
    elif math.isclose(ratio, 1 / number, rel_tol=close):
        what = (
            f"1/{number} of the gradient of the full batch: the loss is divided by the number of "
            "micro-batches once too often"
        )
        hint = f"divide by {number} in one place"
    else:
        what = f"{ratio:.4g} times the gradient of the full batch"
        hint = "look at what the loss of a micro-batch is multiplied and divided by"
    return Cause("ratio", what, hint, site, ratio=ratio, weights=weights)


def of_clipping(step: Step) -> Cause | None:
    """Return what is wrong with where it was clipped, if it was clipped too early."""
    if step.clipped is None:
        return None
    return Cause(
        "clipped",
        "a gradient that was clipped between the backwards of its window",
        "clip once for each step, after the last backward() of a window",
        step.clipped,
    )


def _of_anything(step: Step) -> Cause:
    return Cause(
        "other",
        "another gradient than that of the full batch",
        "look at what differs between a micro-batch and the full batch: what the loss is divided "
        "by, what is cleared, and what the model keeps from one call to the next",
        step.backwards[-1] if step.backwards else step.site,
    )


def _counted(there: list[int], number: int) -> str:
    *others, last = (str(index + 1) for index in there)
    names = f"{', '.join(others)} and {last}" if others else last
    return f"micro-batch{'' if len(there) == 1 else 'es'} {names} of {number}"


def _shown(rates: tuple[float, ...]) -> str:
    return ", ".join(f"{rate:.4g}" for rate in rates)
