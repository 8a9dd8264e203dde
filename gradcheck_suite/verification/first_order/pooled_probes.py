"""Pool many probes into one slope for each gradient, where single probes see too little.

In float32 a kink (relu, max) costs a probe most of its digits. Which kinks a probe meets is chance,
and over many random directions their parts cancel. The changes of an output are fitted by
what the gradient of each variable foretells; ``regression`` tells how, and what does not cancel.
All variables move together, so that this takes as many evaluations as for one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import TYPE_CHECKING, TypeAlias

import torch

from gradcheck_suite.verification.first_order.float64_reference import coarse_pairs
from gradcheck_suite.verification.numerics.central_differences import Estimate
from gradcheck_suite.verification.numerics.decision import Conclusion, Pair
from gradcheck_suite.verification.numerics.derivative import SAFETY, differentiate, inner_product
from gradcheck_suite.verification.numerics.evaluation_point import outputs_at
from gradcheck_suite.verification.numerics.regression import (
    RATIO,
    Regression,
    SlopeAtTwoSteps,
    step_for,
)
from gradcheck_suite.verification.progress import Deadline

if TYPE_CHECKING:
    from gradcheck_suite.verification.first_order.probe_context import ProbeContext
    from gradcheck_suite.verification.numerics.evaluation_point import Point

__all__ = ["ProbePool", "pooled_conclusions"]


_PILOT = 2.0**-17
"""The half width, in units of the input's scale, at which rounding shows and nothing else does: 64
roundings of a float32 input."""
_SMALLEST, _LARGEST = 2.0**-15, 2.0**-9
"""Bounds of the half width to pool at, in units of the input's scale: below the smaller an input
moves by few of its own roundings, beyond the larger functions bend."""
_PILOTS = 8
"""How many probes tell how far rounding scatters: to within some 25 % (one over the root of twice
as many), which the step alone depends on."""
_FIRST_PILOT = 4900
"""Number of the first pilot; any does that no other probe has."""
_SIZES = (48, 144)
"""How many probes the first look and the last one have taken. With a scatter of
``regression.SCATTER`` 144 tell 1.5e-3 at six standard errors. The first look asks for twelve, and
settles what is far beyond."""
_FOR_EACH = 2
"""As many more probes for each variable: a fit uses one degree of freedom for each, and one more
keeps its errors known."""
_MOST_WORK = 2**27
"""How many elements all probes together may go through: beyond, the first look has to do, as many
kinks average out within each probe of large tensors. A bound on cost."""
_MOST_SECONDS = 60.0
"""Where a call takes so long that this is not enough, single probes have to do. A bound on cost."""
_FIRST_PROBE = 5000
"""Number of the first pooled probe; any does that no other probe has."""
_FIRST_AGAIN = 6000
"""Number of the first that looks again; any does that no other probe has."""
_LEAST = 1e-3
"""The share of a gradient that counts as no error: what neither averages out nor is one are digits
of constants, as of an approximated function."""
_USEFUL = 5e-3
"""The relative tolerance that a pass by pooled probes has to be finer than: a tenth of what single
float32 probes leave (``resolution``). Chosen."""
_PASSES = 4.0
"""How many standard errors a slope of a right gradient may lie off: beyond 4 it does in one of 16
000 draws of normal noise."""
_FAILS = 6.0
"""How many standard errors count as wrong: so far slopes lie off by chance once in a billion draws
of normal noise to either side. The first look asks for twice as many."""
_CONFIRMS = 3.0
"""A failure is looked at again by probes of its own, where one in a thousand is enough: so often
slopes lie 3 standard errors off to the side that the first look saw."""
_LEFT = 0.3
"""The share of an error that steps in proportion to each entry certainly see less of, if it is none
of the gradient's. Chosen: an error shows in full along any steps."""


def pooled_conclusions(
    context: ProbeContext, conclusions: Mapping[Pair, Conclusion]
) -> tuple[dict[Pair, Conclusion], bool]:
    """Conclude anew on the pairs that single probes could not tell finely.

    A failure has to show again in other probes, at a point beside the given one, where no entry
    lies exactly on a kink.

    Returns:
        Conclusions for those pairs alone where pooling says more, and whether there was no time
        for some of the others.
    """
    coarse = coarse_pairs(conclusions)
    clock = context.deadline.or_after(_MOST_SECONDS)
    found = _pool(context, context.point, conclusions, coarse, clock=clock)
    late = clock.passed and bool(coarse - found.keys())
    failed = {pair for pair, conclusion in found.items() if conclusion.status == "fail"}
    confirmed = _confirmed(context, conclusions, found, failed) if failed else failed
    kept = {
        pair: conclusion
        for pair, conclusion in found.items()
        if conclusion.status != "fail" or pair in confirmed
    }
    return kept, late


def _confirmed(
    context: ProbeContext,
    conclusions: Mapping[Pair, Conclusion],
    first: Mapping[Pair, Conclusion],
    failed: set[Pair],
) -> set[Pair]:
    beside = context.moved_point()
    if beside is None:
        return set()
    again = _pool(context, beside, conclusions, failed, fails=_CONFIRMS, first=_FIRST_AGAIN)
    return {
        pair
        for pair, conclusion in again.items()
        if conclusion.status == "fail"
        and conclusion.shown.deviation * first[pair].shown.deviation > 0.0
        and not _vanishes_in_proportion(context, pair, first[pair].shown.relative_deviation)
    }


def _vanishes_in_proportion(context: ProbeContext, pair: Pair, off: float) -> bool:
    """Return whether steps in proportion to each entry certainly see less of an error.

    Where a few small entries make most of the gradient (``a % b`` for a small ``b``), steps of one
    size for all entries stride over whatever the function does near these.
    """
    output, variable = pair
    for step in (_SMALLEST, _PILOT):
        probes = ProbePool(
            context, context.point, [variable], (step, RATIO * step), in_proportion=True
        )
        if not all(probes.take(_FIRST_PILOT + probe) for probe in range(_PILOTS)):
            return True
        (slope,) = probes.regression(output).slopes_at_two_steps()
        if slope is not None and abs(slope.value) + _CONFIRMS * slope.error < _LEFT * off:
            return True
    return False


def _pool(
    context: ProbeContext,
    point: Point,
    conclusions: Mapping[Pair, Conclusion],
    wanted: set[Pair],
    *,
    fails: float = _FAILS,
    first: int = _FIRST_PROBE,
    clock: Deadline = Deadline(),  # noqa: B008 - it is frozen
) -> dict[Pair, Conclusion]:
    coarse = set(wanted)
    if not coarse or clock.passed:
        return {}
    found: dict[Pair, Conclusion] = {}
    variables = sorted({variable for _, variable in coarse})
    probes = ProbePool(context, point, variables, (_PILOT, RATIO * _PILOT))
    if not all(probes.take(_FIRST_PILOT + probe) for probe in range(_PILOTS)):
        return found
    scatter = max(probes.regression(output).scatter() for output in {out for out, _ in coarse})
    step = step_for(scatter, _PILOT, _SMALLEST, _LARGEST)
    probes = ProbePool(context, point, variables, (step, RATIO * step))
    # A fit uses one degree of freedom for each variable.
    sizes = [size + _FOR_EACH * len(variables) for size in _SIZES]
    if sizes[-1] * _elements(point) > _MOST_WORK:
        del sizes[1:]
    for start, end in pairwise((0, *sizes)):
        taken = (probes.take(first + probe) for probe in range(start, end))
        if not coarse or not all(one and not clock.passed for one in taken):
            break
        for output in sorted({output for output, _ in coarse}):
            if not probes.changes[output]:
                # Single probes know what to make of an output that stays as it is, bit for bit.
                continue
            slopes = probes.regression(output).slopes_at_two_steps()
            lost_in_rounding = probes.lost_in_rounding(output, context.precision.eps)
            for variable, slope, lost in zip(variables, slopes, lost_in_rounding, strict=True):
                pair = (output, variable)
                if pair not in coarse or slope is None or lost:
                    continue
                limit = fails if end == sizes[-1] else 2.0 * _FAILS
                new = _concluded(conclusions[pair], slope, step, fails=limit)
                if new is not None:
                    found[pair] = new
                    coarse.discard(pair)
    return found


def _elements(point: Point) -> int:
    outputs = (output.tensor for output in point.outputs)
    return sum(tensor.numel() for tensor in (*point.values, *outputs))


def _concluded(
    old: Conclusion, slope: SlopeAtTwoSteps, step: float, *, fails: float
) -> Conclusion | None:
    tolerance = _PASSES * slope.error + slope.bias + _LEAST
    part = old.shown.contribution
    shown = replace(
        old.shown,
        analytic=part,
        estimate=Estimate(
            value=slope.value * part,
            truncation=0.0,
            rounding=tolerance * part / SAFETY,
            kink=0.0,
            step=step,
        ),
        trouble=None,
    )
    if slope.is_off(fails, _LEAST):
        return Conclusion("fail", shown)
    if abs(slope.value) <= tolerance < min(old.shown.relative_tolerance, _USEFUL):
        return Conclusion("pass", shown) if old.status == "pass" else None
    return None


_Seen: TypeAlias = tuple[list[float], list[list[float]], float]
"""Of a probe the change at each step, each variable's part of it, and the bend, squared."""

_LOST = 8.0
"""Changes of fewer roundings (eps) of the output's 2-norm may be lost as a whole. Chosen, as each
operation on the way may round once."""


class ProbePool:
    """Probes in which some variables move together, at one point.

    Attributes:
        changes: for each output whether any probe changed it.
    """

    def __init__(
        self,
        context: ProbeContext,
        point: Point,
        variables: Sequence[int],
        steps: Sequence[float],
        *,
        in_proportion: bool = False,
    ) -> None:
        self._in_proportion = in_proportion
        self._context = context
        self._steps = tuple(steps)
        self._point = point
        self._variables = variables
        self._centres = [output.tensor.double() for output in point.outputs]
        self._seen: list[list[_Seen]] = [[] for _ in point.outputs]
        self.changes = [False] * len(point.outputs)

    def take(self, probe: int, rows: Sequence[Sequence[torch.Tensor | None]] | None = None) -> bool:
        """Take a probe at every step; False if the function can't be evaluated near by.

        Args:
            probe: its number, which its cotangents and directions are drawn by.
            rows: the gradients for these cotangents, where they are known already.
        """
        point, context = self._point, self._context
        cotangents = context.cotangents(point, probe)
        if rows is None:
            rows = differentiate(context.subject, point, cotangents).rows
        along = {variable: context.direction(probe, variable) for variable in self._variables}
        if self._in_proportion:
            along = {variable: context.in_proportion(variable, v) for variable, v in along.items()}
        steps = []
        for step in self._steps:
            difference = self._central_difference(along, step)
            if difference is None:
                return False
            steps.append(difference)
        for index, (seen, row) in enumerate(zip(self._seen, rows, strict=True)):
            cotangent = cotangents[index].double()
            given = [(variable, row[variable]) for variable in self._variables]
            changes, parts = [], []
            for one in steps:
                high, low = one.high[index], one.low[index]
                self.changes[index] |= not torch.equal(high, low)
                changes.append(inner_product(cotangent, high - low))
                parts.append(
                    [
                        0.0 if part is None else inner_product(part.double(), one.made[variable])
                        for variable, part in given
                    ]
                )
            bend = steps[0].high[index] + steps[0].low[index]
            bend = bend.sub_(self._centres[index], alpha=2.0).mul_(cotangent)
            square = inner_product(bend, bend)
            if not all(map(math.isfinite, (*changes, square, *chain(*parts)))):
                return False
            seen.append((changes, parts, square))
        return True

    def regression(self, output: int) -> Regression:
        """Return what the probes saw of an output."""
        changes, parts, squares = (
            torch.tensor(each, dtype=torch.float64)
            for each in zip(*self._seen[output], strict=True)
        )
        regression = Regression(independent=True)
        regression.add(changes.T[..., None], parts.permute(2, 1, 0)[..., None], squares)
        return regression

    def lost_in_rounding(self, output: int, eps: float) -> list[bool]:
        """Return for each variable whether roundings may swallow all that it does to an output."""
        parts = self.regression(output).parts(0)
        finite = self._point.finite[output]
        centre = self._centres[output]
        size = torch.linalg.vector_norm(centre if finite is None else centre.where(finite, 0.0))
        least = _LOST * eps * float(size)
        return [float(part) <= least for part in parts.square().mean(1).sqrt()]

    def _central_difference(
        self, along: Mapping[int, torch.Tensor], step: float
    ) -> _CentralDifference | None:
        point, subject = self._point, self._context.subject
        ends = [list(point.values), list(point.values)]
        made = {}
        for variable, direction in along.items():
            for end, sign in zip(ends, (1.0, -1.0), strict=True):
                end[variable] = torch.add(end[variable], direction, alpha=sign * step)
            difference = ends[0][variable].double() - ends[1][variable].double()
            fixed = subject.variables[variable].fixed
            made[variable] = difference if fixed is None else difference.where(~fixed, 0.0)
        produced = outputs_at(subject, point, ends)
        if produced is None:
            return None
        high, low = produced
        return _CentralDifference(
            [one.double() for one in high], [one.double() for one in low], made
        )


@dataclass(frozen=True, slots=True)
class _CentralDifference:
    """The outputs ahead and behind, and by how much the inputs really differ."""

    high: Sequence[torch.Tensor]
    low: Sequence[torch.Tensor]
    made: Mapping[int, torch.Tensor]
