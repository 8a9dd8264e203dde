"""Measure every gradient of a function with as few evaluations as certainty allows.

All variables move together first. A variable whose part of the derivative stands out against the
tolerance is done with; the others are measured in smaller groups, down to single ones. What looks
wrong is measured again by itself: other directions, other cotangents, a finer ladder, and a point
close by.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from gradcheck_suite.verification.first_order.float64_reference import conclusions_by_reference
from gradcheck_suite.verification.first_order.piecewise_constant import (
    change_along,
    is_piecewise_constant,
    is_quantized,
)
from gradcheck_suite.verification.first_order.pooled_probes import pooled_conclusions
from gradcheck_suite.verification.first_order.step_stability import vanishing_at_smaller_steps
from gradcheck_suite.verification.first_order.ulp_noise import UlpNoise
from gradcheck_suite.verification.numerics.decision import (
    Conclusion,
    Outcome,
    Pair,
    conclude,
    judge,
)
from gradcheck_suite.verification.numerics.derivative import Gradients, Measurement, measure
from gradcheck_suite.verification.numerics.recorded_call import RecordedCall
from gradcheck_suite.verification.target.non_derivatives import CTC, is_straight_through

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gradcheck_suite.verification.first_order.probe_context import ProbeContext
    from gradcheck_suite.verification.numerics.evaluation_point import Point
    from gradcheck_suite.verification.target.graph_walk import GraphPath

__all__ = ["GradientMeasurement"]

_FIRST_CONFIRMATION = 1000
"""Number of the first probe that looks again; any does that lies beyond those of usual probes,
which are numbered from 0."""
_CONFIRMATIONS = 2
"""How many more probes a suspect gets. A bound on cost: with the one that showed it they are one
more than a failure takes (``decision``)."""
_MANY_SUSPECTS = 8
"""Where this many gradients look wrong, one cause spoils them all: one more look at each will do. A
bound on cost."""
_STEPS = (
    "the function is made of steps (it rounds): from afar they have a slope, close by it is zero, "
    "as the gradient says"
)
_STRIDES = (
    "the gradient disagrees along the usual steps, and not as much along much smaller ones: the "
    "function has kinks, jumps or poles that the usual steps stride over; dtype='float64' sees more"
)
_LAST_BIT = (
    "for inputs that differ from the given ones in their last bit the gradient is off by quite "
    "another amount: the output is rounding noise here, which has no derivative"
)
_IN_DOUBLE = (
    "{} of {} gradients: float32 differences were too coarse, so those of the same function in "
    "float64, which has the same values here and around, were taken"
)
_LATE = (
    "gradients that kinks hide from single probes were not looked at by many of them, for want of "
    "time; dtype='float64' sees more in less"
)
_SMALL_GROUP = 8
"""A group this small that does not shrink is measured one by one; a larger one is halved. A bound
on cost."""
_MANY_VARIABLES = 16
"""Of more variables than these, each is measured once by itself; in float32 pooled probes follow. A
bound on cost."""
_ONE_SIDED = (2.0**-8, 2.0**-10, 2.0**-12)
"""How far to move to either side in float32, in units of the input's scale: what rounding
(``2**-23``) adds to a slope is below 1e-3."""
_ONE_SIDED_IN_DOUBLE = (2.0**-13, 2.0**-17, 2.0**-21)
"""The same in float64, where rounding adds less than 1e-9."""
_SAME_SLOPE = 1.0 / 64.0
"""By how much slopes may differ from each other, as a share. ``|x| ** p`` differs by more for p
below 0.994 along steps that span a factor of 16, and below 0.997 in float64, where they span
256."""


class GradientMeasurement:
    """The measurements of every gradient of a function, and what they come to.

    Attributes:
        context: the function and the point, and what probes share.
        covered: sentences on what was looked at otherwise than usual.
        not_covered: sentences on what was left out for want of time.
    """

    def __init__(self, context: ProbeContext, *, probes: int) -> None:
        self.context = context
        self.covered: list[str] = []
        self.not_covered: list[str] = []
        self._probes = probes
        self._outcomes: dict[Pair, list[Outcome]] = defaultdict(list)
        self._noise = UlpNoise(context)
        self._call: RecordedCall | None = None

    def run(self) -> dict[Pair, Conclusion]:
        """Measure every pair and conclude on it."""
        for probe in range(self._probes):
            suspects = self._suspects()
            group = [variable for variable in self.context.variables if variable not in suspects]
            gradients = self.context.differentiated(self.context.point, probe)
            broken = [v for v in group if _has_non_finite(gradients, v)]
            for variable in broken:
                self._measure_group(probe, [variable])
            self._measure_group(probe, [variable for variable in group if variable not in broken])
        self._allow_for_rounding_in_backward()
        for count, variable in enumerate(sorted(self._suspects())):
            few = count < _MANY_SUSPECTS
            for extra in range(_CONFIRMATIONS if few else 1):
                self._measure_alone(self.context.point, _FIRST_CONFIRMATION + extra, variable)
            if few or not self._failed_everywhere(variable):
                self._measure_moved(variable, probes=1)
            if not self.context.precision.is_double:
                self._measure_relative(variable)
        for variable in sorted(self._undecided()):
            if self._in_trouble(variable):
                self._measure_relative(variable)
            if variable in self._undecided():
                self._measure_moved(variable, probes=_CONFIRMATIONS)
        found = {pair: self._concluded(pair) for pair in self.context.pairs}
        if self.context.precision.is_double or not self.context.deterministic:
            return found
        return self._refined(found)

    def _refined(self, found: dict[Pair, Conclusion]) -> dict[Pair, Conclusion]:
        """Hold what coarse probes say to smaller steps, to float64 and to many of them together."""
        refuted = self._vanishing_at_smaller_steps(found)
        strides = {
            pair: replace(found[pair], status="inconclusive", reason=_STRIDES) for pair in refuted
        }
        held = found | strides
        finer = conclusions_by_reference(self.context, held, self._noise)
        if finer:
            self.covered.append(_IN_DOUBLE.format(len(finer), len(self.context.pairs)))
        held |= self._with_failures(finer)
        # Pooled slopes are compared at several steps anyway, and would stride over the same.
        rest = {pair: one for pair, one in held.items() if pair not in refuted}
        pooled, late = pooled_conclusions(self.context, rest)
        if late:
            self.not_covered.append(_LATE)
        return held | self._with_failures(pooled)

    def _vanishing_at_smaller_steps(self, found: Mapping[Pair, Conclusion]) -> set[Pair]:
        """Return the pairs that look wrong along usual steps and certainly not along smaller."""
        vanishing: set[Pair] = set()
        for moved in (False, True):
            failing = {
                pair: one.shown.estimate.step
                for pair, one in found.items()
                if one.status == "fail" and one.moved is moved and not one.shown.unchanged
            }
            point = self.context.moved_point() if moved and failing else self.context.point
            if point is not None:
                vanishing |= vanishing_at_smaller_steps(self.context, point, failing)
        return vanishing

    def _concluded(self, pair: Pair) -> Conclusion:
        conclusion = conclude(self._outcomes[pair], self.context.precision)
        shown = conclusion.shown
        silent = conclusion.status == "fail" and not shown.contribution and not shown.non_finite
        if silent and is_piecewise_constant(self.context, *pair):
            return replace(conclusion, status="inconclusive", reason=_STEPS)
        if conclusion.status == "fail" and self._is_rounding(pair):
            return replace(conclusion, status="inconclusive", reason=_LAST_BIT)
        if conclusion.at_kink and _has_one_sided_derivatives(self.context, *pair):
            return replace(conclusion, status="fail", reason=None)
        if conclusion.status == "pass" or shown.non_finite or not self.context.deterministic:
            return conclusion
        return self._held_to_functions(pair, conclusion)

    def _held_to_functions(self, pair: Pair, conclusion: Conclusion) -> Conclusion:
        """Conclude anew where custom Functions round, or say that they give no derivative."""
        path = self._path_of(pair)
        functions = path.functions if path.connected else ()
        if path.log_probabilities and conclusion.status == "fail":
            return replace(conclusion, status="inconclusive", reason=CTC, meant=True)
        meant = [function.__name__ for function in functions if is_straight_through(function)]
        if meant:
            return replace(
                conclusion,
                status="inconclusive",
                reason=f"the gradient passes {', '.join(meant)}, by design not its derivative "
                "(straight_through = True)",
                meant=True,
            )
        shown = conclusion.shown
        if not functions or not shown.contribution or not is_quantized(self.context, *pair):
            return conclusion
        shown = shown.of_steps()
        self._outcomes[pair].append(Outcome("fail", shown, moved=False, probe=0))
        return Conclusion("fail", shown)

    def _path_of(self, pair: Pair) -> GraphPath:
        """Return what lies on the way from a variable to an output."""
        if self._call is None:
            self._call = RecordedCall.of(self.context.subject, self.context.point)
        return self._call.path(*pair)

    def _is_rounding(self, pair: Pair) -> bool:
        """Return whether the last bits of the inputs decide what a gradient deviates by."""
        alone = [
            outcome
            for outcome in self._outcomes[pair]
            if outcome.ruling == "fail"
            and outcome.measurement.group == (pair[1],)
            and not (outcome.moved or outcome.relative or outcome.measurement.non_finite)
        ]
        return bool(alone) and self._noise.explains(pair, alone[0])

    def _with_failures(self, found: dict[Pair, Conclusion]) -> dict[Pair, Conclusion]:
        """Note failures that came of other measurements than single probes."""
        for pair, conclusion in found.items():
            if conclusion.status == "fail":
                outcome = Outcome("fail", conclusion.shown, moved=False, probe=0)
                self._outcomes[pair].append(outcome)
        return found

    def conclusions_so_far(self) -> dict[Pair, Conclusion]:
        """Conclude on the pairs that have been measured, as after an interruption."""
        return {
            pair: conclude(self._outcomes[pair], self.context.precision)
            for pair in self.context.pairs
            if self._outcomes[pair]
        }

    def outcomes(self, pair: Pair) -> list[Outcome]:
        """Return everything that was measured of a pair."""
        return self._outcomes[pair]

    def _measure_group(self, probe: int, group: list[int]) -> None:
        """Measure variables together, and those that this does not settle in smaller groups.

        Of many variables, those that have passed before are not looked at more closely again for
        kinks of the others, as long as nothing speaks against them.
        """
        if not group:
            return
        results = self._measure(
            self.context.point, probe, {v: self.context.direction(probe, v) for v in group}
        )
        if len(group) == 1:
            self._note(results, group[0], probe, moved=False)
            return
        agree = all(result.z <= 1.0 for result in results)
        spare = agree and len(self.context.point.values) > _MANY_VARIABLES
        rest = []
        for variable in group:
            known = spare and self._has_passed(variable)
            rulings = [judge(result, variable, self.context.precision) for result in results]
            for result, ruling in zip(results, rulings, strict=True):
                if ruling == "pass":
                    pair = (result.output, variable)
                    self._outcomes[pair].append(Outcome(ruling, result, moved=False, probe=probe))
            if not known and any(ruling != "pass" for ruling in rulings):
                rest.append(variable)
        if len(rest) <= len(group) // 2:
            self._measure_group(probe, rest)
            return
        parts = len(rest) if len(rest) <= _SMALL_GROUP else 2
        size = -(-len(rest) // parts)
        for start in range(0, len(rest), size):
            self._measure_group(probe, rest[start : start + size])

    def _has_passed(self, variable: int) -> bool:
        return all(
            any(outcome.ruling == "pass" for outcome in self._outcomes[output, variable])
            for output in range(len(self.context.point.outputs))
        )

    def _measure_alone(self, point: Point, probe: int, variable: int) -> None:
        results = self._measure(point, probe, {variable: self.context.direction(probe, variable)})
        self._note(results, variable, probe, moved=point.moved)

    def _in_trouble(self, variable: int) -> bool:
        return any(
            outcome.measurement.trouble
            for output in range(len(self.context.point.outputs))
            for outcome in self._outcomes[output, variable]
        )

    def _measure_relative(self, variable: int) -> None:
        """Move every entry in proportion to itself, which keeps it on its side of zero."""
        value = self.context.point.values[variable]
        if bool((value == 0).any()) or not bool(torch.isfinite(value).all()):
            return
        probe = _FIRST_CONFIRMATION
        direction = self.context.in_proportion(variable, self.context.direction(probe, variable))
        results = self._measure(self.context.point, probe, {variable: direction})
        self._note(results, variable, probe, moved=False, relative=True)

    def _measure_moved(self, variable: int, *, probes: int) -> None:
        point = self.context.moved_point()
        if point is None:
            return
        for probe in range(probes):
            self._measure_alone(point, _FIRST_CONFIRMATION + _CONFIRMATIONS + probe, variable)

    def _measure(
        self, point: Point, probe: int, direction: dict[int, torch.Tensor]
    ) -> list[Measurement]:
        return measure(
            self.context.subject,
            point,
            self.context.cotangents(point, probe),
            self.context.differentiated(point, probe),
            direction,
            precision=self.context.precision,
            thorough=len(direction) == 1,
        )

    def _allow_for_rounding_in_backward(self) -> None:
        """Measure how far rounding moves the analytic gradients of suspects, and judge anew."""
        suspects = self._suspects()
        if not suspects:
            return
        self._noise.perturb_inputs(suspects)
        faint = {pair for pair in self.context.pairs if self._is_faint(pair)}
        if faint:
            self._noise.perturb_results(faint)
        for output in range(len(self.context.point.outputs)):
            for variable in suspects:
                pair = (output, variable)
                self._outcomes[pair] = [self._judged(pair, old) for old in self._outcomes[pair]]

    def _is_faint(self, pair: Pair) -> bool:
        """Return whether rounding might explain a disagreement: half the digits may cancel."""
        most = math.sqrt(self.context.precision.eps)
        return any(
            outcome.ruling in {"fail", "ambiguous"}
            and abs(outcome.measurement.deviation) <= most * outcome.measurement.magnitude
            for outcome in self._outcomes[pair]
        )

    def _judged(self, pair: Pair, outcome: Outcome) -> Outcome:
        """Judge a measurement of one variable in the light of its backward's rounding."""
        measurement = outcome.measurement
        if len(measurement.group) > 1:
            return outcome
        noise = self._noise.noise[pair] * measurement.contribution
        measurement = replace(measurement, analytic_noise=noise)
        ruling = judge(measurement, pair[1], self.context.precision)
        return replace(outcome, ruling=ruling, measurement=measurement)

    def _note(
        self,
        results: Sequence[Measurement],
        variable: int,
        probe: int,
        *,
        moved: bool,
        relative: bool = False,
    ) -> None:
        for result in results:
            pair = (result.output, variable)
            outcome = Outcome("unresolved", result, moved, probe, relative)
            self._outcomes[pair].append(self._judged(pair, outcome))

    def _suspects(self) -> set[int]:
        return {
            variable
            for (_, variable), outcomes in self._outcomes.items()
            if any(outcome.ruling in {"fail", "ambiguous"} for outcome in outcomes)
        }

    def _failed_everywhere(self, variable: int) -> bool:
        """Return whether no measurement of this variable by itself was a doubtful one."""
        alone = [
            outcome.ruling
            for output in range(len(self.context.point.outputs))
            for outcome in self._outcomes[output, variable]
            if len(outcome.measurement.group) == 1
        ]
        return "ambiguous" not in alone and "unresolved" not in alone

    def _undecided(self) -> set[int]:
        return {
            variable
            for output, variable in self.context.pairs
            if all(outcome.ruling == "unresolved" for outcome in self._outcomes[output, variable])
        }


def _has_non_finite(gradients: Gradients, variable: int) -> bool:
    parts = (row[variable] for row in gradients.rows)
    return any(part is not None and not bool(torch.isfinite(part).all()) for part in parts)


def _has_one_sided_derivatives(context: ProbeContext, output: int, variable: int) -> bool:
    """Return whether slopes on both sides stay the same as steps shrink, where broken entries move.

    The length of a vector has a kink at zero: seen from either side its slope is one, and any
    number between is as good a gradient as another. NaN, as ``x.square().sum().sqrt()`` gives
    there, is none. The square root of the size of ``x`` is steeper the closer one looks, and NaN or
    Inf all that can be said.
    """
    gradient = context.gradients.rows[output][variable]
    if gradient is None or gradient.layout is not torch.strided or not context.deterministic:
        return False
    along = context.direction(0, variable).where(~torch.isfinite(gradient), 0.0)
    steps = _ONE_SIDED_IN_DOUBLE if context.precision.is_double else _ONE_SIDED
    return all(
        _settles([(step, change_along(context, output, variable, step, along)) for step in taken])
        for taken in (steps, [-step for step in steps])
    )


def _settles(changes: Sequence[tuple[float, torch.Tensor | None]]) -> bool:
    slopes = [change / step for step, change in changes if change is not None]
    if len(slopes) < len(changes):
        return False
    last = slopes[-1]
    size = float(torch.linalg.vector_norm(last))
    if not math.isfinite(size):
        return False
    return all(
        float(torch.linalg.vector_norm(slope - last)) <= _SAME_SLOPE * size for slope in slopes[:-1]
    )
