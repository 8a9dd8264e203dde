"""Measure gradients in bfloat16 and float16, natively, by pooling many coarse probes.

Two or three digits leave no single probe a derivative worth the name. Over many random probes the
changes of the output, against those that the gradient foretells, lie on a line whose slope is one
if the gradient is right; roundings scatter about it and average out (``regression`` tells how). Two
widths of steps, extrapolated as in ``differences``, take out what curvature does to the slope.

A slope tells an error that most of the gradient has. It does not tell one wrong entry of many: that
takes float32 or float64, and the report says so.

Where the function runs in float64 too, what it changes there beyond its slope, by kinks and by
curvature, is taken off what is seen: rounding alone is left to scatter (a control variate).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from gradcheck_suite.verification.first_order.float64_reference import (
    Float64Reference,
    float64_reference_of,
)
from gradcheck_suite.verification.first_order.measure import GradientMeasurement
from gradcheck_suite.verification.numerics.central_differences import Estimate
from gradcheck_suite.verification.numerics.decision import Conclusion, Outcome, Pair
from gradcheck_suite.verification.numerics.derivative import SAFETY, Measurement, differentiate
from gradcheck_suite.verification.numerics.evaluation_point import outputs_at
from gradcheck_suite.verification.numerics.regression import ExtrapolatedSlope, Regression

if TYPE_CHECKING:
    from gradcheck_suite.verification.first_order.probe_context import ProbeContext
    from gradcheck_suite.verification.numerics.evaluation_point import Point
    from gradcheck_suite.verification.progress import Deadline

__all__ = ["HalfPrecisionMeasurement"]

_STEP = 2.0**-4
"""The smaller half width, in units of the input's scale: 8 times the eps of bfloat16, so that a
step is not lost in the input's own rounding."""
_STEPS = (_STEP, 2.0 * _STEP)
"""Both half widths: two of them tell what goes with the step from what stays as it goes to zero."""
_ROUNDS = (8, 16, 32, 64)
"""How many directions, and as many cotangents, each round adds. What rounding scatters falls as one
over the root of their sum; each round about doubles it, so that little more than twice of what is
needed is taken."""
_LAST_ROUNDS = (*_ROUNDS, 128)
"""The same for a variable by itself, which has one round more. A bound on cost."""
_WANTED = (4.0, 2.0, 1.0)
"""How small an error has to be excluded for a pass, in units of the precision's target, with no,
one or more rounds left: what the first ones show no finer may still show in the next. 4 targets are
the precision's resolution of 10 %."""
_LEFT_AT_ZERO = 2
"""With so many rounds left, a gradient of zero is concluded on: after the third of five. A bound on
cost: it takes the median of changes, and no finer a slope."""
_LEFT_AT_FAILURE = 1
"""With so many rounds left, a failure is told: not before the fourth of five, as standard errors
from few probes are too small by chance now and then."""
_SHARE_BESIDE = 0.5
"""How much of an error has to show at a point close by, where kinks lie elsewhere: half. Chosen:
kinks leave another amount there, or none."""
_KINKS = (
    "the gradient is off by more than rounding explains, and not at a point close by: kinks (relu, "
    "abs, max, ...) lie within the smallest step; dtype='float64' sees more"
)
_IN_DOUBLE = (
    "kinks and curvature were taken out of the differences by those of the same function in "
    "float64, which has the same values up to rounding"
)
_PASSES = 3.0
"""How many standard errors a slope of a right gradient may lie off: within 3 it does in 99.7 % of
draws, and what does not pass is measured again."""
_FAILS = 5.0
"""How many standard errors count as wrong: 5 of them are reached by chance once in a million."""
_BIAS = 0.01
"""The share of a gradient that counts as no error, ``rtol`` of half precision: roundings within a
backward do not all average out, as constants in it are rounded once for all. It is some 3 roundings
of bfloat16 (``2**-8``)."""
_FOR_EACH = 2
"""Variables that move together get as many more directions for each: a fit uses one degree of
freedom for each, and one more keeps its errors known."""
_FEWEST_TOGETHER = 2
"""From so many variables on they move together; one is alone."""
_STALLED = 0.75
"""What share of the variables may be left over if the rest is to move together again. A bound on
cost: where fewer are done with, each is measured by itself."""
_STREAM = 100_000
"""Number of the first probe of variables that move together, and by how much that of the next group
is larger; more than what one group draws (``_APART`` times its rounds)."""
_STREAM_BESIDE = 50_000
"""Number of the first probe beside the point; between those at the point and ``_STREAM``."""
_MOST_SECONDS = 60.0
"""After so many seconds what was not seen by then is inconclusive. A bound on cost."""


class HalfPrecisionMeasurement(GradientMeasurement):
    """The measurements of gradients in half precision, over many probes.

    All variables move together first, and those whose gradients this shows to be right are done
    with; as long as enough of them are, the others move together without them. What is left, and
    whatever looks wrong, is measured each variable by itself.
    """

    _reference: Float64Reference | None = None

    def run(self) -> dict[Pair, Conclusion]:
        """Measure every pair and conclude on it."""
        clock = self.context.deadline.or_after(_MOST_SECONDS)
        if self.context.deterministic:
            self._reference = float64_reference_of(self.context, self.context.point)
        if self._reference is not None:
            self.covered.append(_IN_DOUBLE)
        found = self._passed_together(clock)
        outputs = range(len(self.context.point.outputs))
        for variable in self.context.variables:
            if any((output, variable) not in found for output in outputs):
                found = self._run(variable, clock) | found
        for pair, conclusion in found.items():
            if conclusion.status == "fail":
                self._outcomes[pair].append(Outcome("fail", conclusion.shown, False, 0))
        return {pair: found[pair] for pair in self.context.pairs}

    def _passed_together(self, clock: Deadline) -> dict[Pair, Conclusion]:
        """Conclude on the gradients that are right, as far as variables moved together show it."""
        found: dict[Pair, Conclusion] = {}
        left = [variable for variable in self.context.variables if self._has_gradient(variable)]
        stream = _STREAM
        while len(left) >= _FEWEST_TOGETHER and not clock.passed:
            found.update(self._pool_together(left, stream, clock))
            stream += _STREAM
            outputs = range(len(self.context.point.outputs))
            rest = [v for v in left if any((output, v) not in found for output in outputs)]
            if len(rest) > _STALLED * len(left):
                break
            left = rest
        return found

    def _has_gradient(self, variable: int) -> bool:
        parts = [row[variable] for row in self.context.gradients.rows]
        return all(
            part is not None and bool(part.any()) and bool(torch.isfinite(part).all())
            for part in parts
        )

    def _pool_together(
        self, variables: Sequence[int], stream: int, clock: Deadline
    ) -> dict[Pair, Conclusion]:
        probes = _FactorialProbes(
            self.context, self.context.point, variables, self._reference, stream
        )
        passed: dict[Pair, Conclusion] = {}
        for size in _ROUNDS:
            probes.add_round(size + _FOR_EACH * len(variables), size, clock)
            for output, regression in enumerate(probes.regressions):
                slopes = regression.slopes_at_zero() or ()
                for variable, slope in zip(variables, slopes, strict=False):
                    conclusion = self._passed(output, variable, slope)
                    if conclusion is not None:
                        passed[output, variable] = conclusion
            if len(passed) == len(probes.regressions) * len(variables) or clock.passed:
                break
        return passed

    def _passed(self, output: int, variable: int, slope: ExtrapolatedSlope) -> Conclusion | None:
        part = self.context.gradients.rows[output][variable]
        tolerance = _PASSES * slope.error + _slack(slope)
        if not abs(slope.off) <= tolerance <= self.context.precision.target:
            return None
        return Conclusion("pass", self._measurement(output, variable, part, slope.off, tolerance))

    def _run(self, variable: int, clock: Deadline) -> dict[Pair, Conclusion]:
        probes = _FactorialProbes(self.context, self.context.point, [variable], self._reference, 0)
        done: dict[Pair, Conclusion] = {}
        for number, size in enumerate(_LAST_ROUNDS, start=1):
            probes.add_round(size, size, clock)
            left = 0 if clock.passed else len(_LAST_ROUNDS) - number
            for output, regression in enumerate(probes.regressions):
                if (output, variable) not in done:
                    conclusion = self._conclude(output, variable, regression, left=left)
                    if conclusion is not None:
                        done[output, variable] = conclusion
            if len(done) == len(probes.regressions):
                break
        return done

    def _conclude(
        self, output: int, variable: int, regression: Regression, *, left: int
    ) -> Conclusion | None:
        """Conclude on one gradient, or on nothing as long as rounds are ``left`` to decide it."""
        part = self.context.gradients.rows[output][variable]
        if part is not None and not bool(torch.isfinite(part).all()):
            shown = self._measurement(output, variable, part, 0.0, math.inf)
            return Conclusion("inconclusive", shown, "the analytic gradient is not finite")
        if part is None or not bool(part.any()):
            return self._conclude_on_zero(output, variable, regression, part, left=left)
        slopes = regression.slopes_at_zero()
        if slopes is not None:
            return self._conclude_on_slope(output, variable, regression, part, slopes[0], left=left)
        if left:
            return None
        shown = self._measurement(output, variable, part, 0.0, math.inf)
        return Conclusion("inconclusive", shown, "too few probes could be evaluated")

    def _conclude_on_slope(
        self,
        output: int,
        variable: int,
        regression: Regression,
        part: torch.Tensor,
        slope: ExtrapolatedSlope,
        *,
        left: int,
    ) -> Conclusion | None:
        off, slack = abs(slope.off), _slack(slope)
        tolerance = _PASSES * slope.error + slack
        shown = self._measurement(output, variable, part, slope.off, tolerance)
        wanted = _WANTED[min(left, len(_WANTED) - 1)] * self.context.precision.target
        if off <= tolerance and shown.relative_tolerance <= wanted:
            return Conclusion("pass", shown)
        if left > _LEFT_AT_FAILURE:
            return None
        if off > _FAILS * slope.error + _BIAS + slope.kinks:
            if self._fails_beside(output, variable, slope):
                return Conclusion("fail", shown)
            return Conclusion("inconclusive", shown, _KINKS)
        if left:
            return None
        return Conclusion(
            "inconclusive",
            shown,
            f"over {regression.count} pooled probes an error below "
            f"{100.0 * shown.relative_tolerance:.2g}% of the gradient could not be seen; "
            "dtype='float64' sees more",
        )

    def _fails_beside(self, output: int, variable: int, slope: ExtrapolatedSlope) -> bool:
        """Return whether a gradient is as wrong at a point close by."""
        point = self.context.moved_point()
        if point is None:
            return True
        reference = None if self._reference is None else float64_reference_of(self.context, point)
        probes = _FactorialProbes(self.context, point, [variable], reference, _STREAM_BESIDE)
        for size in _ROUNDS[-2:]:
            probes.add_round(size, size, self.context.deadline)
        found = probes.regressions[output].slopes_at_zero()
        if found is None:
            return True
        beside = found[0]
        as_much = beside.off * slope.off > _SHARE_BESIDE * slope.off**2
        return as_much and abs(beside.off) > beside.kinks

    def _conclude_on_zero(
        self,
        output: int,
        variable: int,
        regression: Regression,
        part: torch.Tensor | None,
        *,
        left: int,
    ) -> Conclusion | None:
        shown = self._measurement(output, variable, part, 0.0, 0.0)
        if regression.is_still():
            return Conclusion("pass", shown)
        if left > _LEFT_AT_ZERO:
            return None
        sizes = regression.changes(0).abs() / (2.0 * _STEP)
        if regression.repeats():
            typical = float(sizes.median())
            return Conclusion(
                "fail", self._measurement(output, variable, part, typical, 0.25 * typical)
            )
        return Conclusion(
            "inconclusive",
            self._measurement(
                output, variable, part, 0.0, float(sizes.max()) if len(sizes) else math.inf
            ),
            "the gradient is zero, and changes of the output are within its rounding; "
            "dtype='float64' sees more",
        )

    def _measurement(
        self,
        output: int,
        variable: int,
        part: torch.Tensor | None,
        deviation: float,
        tolerance: float,
    ) -> Measurement:
        """Describe a pooled slope as the derivative along one direction of typical size."""
        size = 0.0
        if part is not None and bool(torch.isfinite(part).all()):
            product = part.double() * self.context.direction(0, variable).double()
            size = float(torch.linalg.vector_norm(product))
        unit = size if size > 0.0 else 1.0
        return Measurement(
            output=output,
            group=(variable,),
            analytic=size,
            contributions={variable: size},
            estimate=Estimate(
                value=deviation * unit,
                truncation=0.0,
                # Measurement.tolerance multiplies by its safety, which the slope's has already.
                rounding=tolerance * unit / SAFETY,
                kink=0.0,
                step=_STEP,
            ),
            magnitude=1.0,
            eps=0.0,
            unchanged=False,
            missing=part is None,
            non_finite=part is not None and not math.isfinite(float(part.double().sum())),
            masked=self.context.point.finite[output] is not None,
        )


def _slack(slope: ExtrapolatedSlope) -> float:
    """Return what does not average out.

    Kinks close to the point and higher derivatives leave some of what the extrapolation changed.
    """
    return _BIAS + abs(slope.curvature) + slope.kinks


_MOST_KEPT = 2**25
"""Gradients of this many entries in all are kept at a time, 128 MiB in float32, but always a few. A
bound on memory."""
_FEWEST = 2
"""How many gradients are kept at a time, however large: with one, what a cotangent scatters could
not be told."""
_APART = 5_000
"""By how much the numbers of the probes of a round and the next differ; more than a round takes."""


@dataclass(frozen=True, slots=True)
class _Change:
    """What one direction does at one step, flat.

    Attributes:
        differences: of each output.
        bends: of each output the square of what kinks at the point may add to them.
        made: the displacement of each variable.
    """

    differences: Sequence[torch.Tensor]
    bends: Sequence[torch.Tensor]
    made: Sequence[torch.Tensor]


class _FactorialProbes:
    """Probes of some variables, all at once, along many directions and by many cotangents.

    Attributes:
        regressions: of each output what the probes saw.
    """

    def __init__(
        self,
        context: ProbeContext,
        point: Point,
        variables: Sequence[int],
        reference: Float64Reference | None,
        stream: int,
    ) -> None:
        self._context = context
        self._point = point
        self._variables = variables
        self._reference = reference
        self._stream = stream
        self.regressions = [Regression() for _ in point.outputs]

    def add_round(self, directions: int, cotangents: int, clock: Deadline) -> None:
        """Add a round of at most so many directions and cotangents, until the clock stops it.

        Nothing is added where the function can't be evaluated near by, nor what is not finite.
        """
        context, point, variables = self._context, self._point, self._variables
        first = self._stream + _APART * len(self.regressions[0].rounds)
        entries = sum(point.values[variable].numel() for variable in variables)
        most = max(_FEWEST, _MOST_KEPT // max(1, entries * len(self.regressions)))
        weights: list[list[torch.Tensor]] = [[] for _ in self.regressions]
        rows: list[list[list[torch.Tensor]]] = [[[] for _ in variables] for _ in self.regressions]
        for number in range(min(cotangents, most)):
            drawn = context.cotangents(point, first + number)
            is_known = first + number == 0 and point is context.point
            known = context.gradients if is_known else differentiate(context.subject, point, drawn)
            for output, row in enumerate(known.rows):
                weights[output].append(drawn[output].double().reshape(-1))
                for place, variable in enumerate(variables):
                    given = row[variable]
                    value = point.values[variable]
                    part = torch.zeros_like(value) if given is None else given
                    rows[output][place].append(part.reshape(-1))
            if clock.passed:
                break
        gradients = [[torch.stack(of).float() for of in row] for row in rows]
        stacked = [torch.stack(each) for each in weights]
        seen: list[list[torch.Tensor]] = [[] for _ in self.regressions]
        parts: list[list[torch.Tensor]] = [[] for _ in self.regressions]
        bends: list[list[torch.Tensor]] = [[] for _ in self.regressions]
        for number in range(directions):
            changes = self._changes(first + number)
            if changes is None:
                break
            for output, (seen_here, parts_here) in enumerate(zip(seen, parts, strict=True)):
                seen_here.append(
                    torch.stack([stacked[output] @ one.differences[output] for one in changes])
                )
                bends[output].append(stacked[output].square().mean(0) @ changes[0].bends[output])
                parts_here.append(
                    torch.stack(
                        [
                            torch.stack([(gradient @ one.made[place]).double() for one in changes])
                            for place, gradient in enumerate(gradients[output])
                        ]
                    )
                )
            if clock.passed:
                break
        for output, regression in enumerate(self.regressions):
            if seen[output]:
                regression.add(
                    torch.stack(seen[output], dim=1),
                    torch.stack(parts[output], dim=2),
                    torch.stack(bends[output]),
                )

    def _changes(self, probe: int) -> list[_Change] | None:
        """Return what is seen at each step; None where the function can't be evaluated."""
        context, point = self._context, self._point
        along = {
            variable: context.direction(probe, variable).double() for variable in self._variables
        }
        found = []
        for step in _STEPS:
            ends = [list(point.values), list(point.values)]
            made = {}
            for variable, direction in along.items():
                value = point.values[variable]
                for end, sign in zip(ends, (1.0, -1.0), strict=True):
                    end[variable] = (value.double() + sign * step * direction).to(value.dtype)
                moved = ends[0][variable].double() - ends[1][variable].double()
                fixed = context.subject.variables[variable].fixed
                moved = moved if fixed is None else moved.where(~fixed, 0.0)
                # Differences of numbers in half precision lose nothing.
                made[variable] = moved.float()
            produced = outputs_at(context.subject, point, ends)
            known = None if self._reference is None else self._reference.change_along(made, ends)
            if produced is None or (self._reference is not None and known is None):
                return None
            high, low = produced
            differences, bends = [], []
            for output, (one, two, finite) in enumerate(zip(high, low, point.finite, strict=True)):
                difference = one.double() - two.double()
                bend = torch.zeros_like(difference)
                if known is not None:
                    change = known[output]
                    difference = difference - change.whole + change.linear
                    bend = change.bend.square()
                difference = difference if finite is None else difference.where(finite, 0.0)
                differences.append(difference.reshape(-1))
                bends.append((bend if finite is None else bend.where(finite, 0.0)).reshape(-1))
            found.append(
                _Change(differences, bends, [moved.reshape(-1) for moved in made.values()])
            )
        return found
