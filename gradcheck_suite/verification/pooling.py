"""Pool many probes into one slope for each gradient, where single probes see too little.

In float32 a kink (relu, max) costs a probe most of its digits. Which kinks a probe meets is chance,
and over many random directions their parts cancel. The changes of an output are fitted by
what the gradient of each variable foretells; ``slopes`` tells how, and what does not cancel. All
variables move together, so that this takes as many evaluations as for one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import torch

from gradcheck_suite.verification.differences import Estimate
from gradcheck_suite.verification.points import evaluate, match_outputs
from gradcheck_suite.verification.probes import SAFETY, differentiate, inner_product
from gradcheck_suite.verification.slopes import RATIO, Pool, Slope, step_for
from gradcheck_suite.verification.verdicts import Conclusion

if TYPE_CHECKING:
    from gradcheck_suite.verification.points import Point
    from gradcheck_suite.verification.survey import Survey

__all__ = ["pooled_conclusions"]

Pair = tuple[int, int]

# Rounding shows at the first of these steps. The others are the bounds of the one to pool at: below
# the smaller an input moves by few of its own roundings, beyond the larger functions bend.
_PILOT = 2.0**-17
_SMALLEST, _LARGEST = 2.0**-15, 2.0**-9
_PILOTS = 8
_FIRST_PILOT = 4900
_SIZES = (48, 144)
_FIRST_PROBE = 5000
_FIRST_AGAIN = 6000
# Single probes that see errors of this size need no pooling.
_FINE_ENOUGH = 2e-3
# What neither averages out nor is an error: digits of constants, as of an approximated function.
_LEAST = 1e-3
_USEFUL = 5e-3
_PASSES = 4.0
# Slopes lie this many standard errors off by chance once in a billion draws of normal noise.
_FAILS = 6.0
# A failure is looked at again by probes of its own, where one in a thousand is enough.
_CONFIRMS = 3.0


def pooled_conclusions(
    survey: Survey, conclusions: Mapping[Pair, Conclusion]
) -> dict[Pair, Conclusion]:
    """Conclude anew on the pairs that single probes could not tell finely.

    A failure has to show again in other probes, at a point beside the given one, where no entry
    lies exactly on a kink.

    Returns:
        Conclusions for those pairs alone where pooling says more.
    """
    coarse = {
        pair
        for pair, conclusion in conclusions.items()
        if conclusion.status != "fail"
        and not conclusion.shown.non_finite
        and not conclusion.shown.drowned
        and conclusion.shown.contributions[pair[1]] > 0.0
        and (
            conclusion.status == "inconclusive"
            or conclusion.shown.relative_tolerance > _FINE_ENOUGH
        )
    }
    found = _pool(survey, survey.point, conclusions, coarse)
    failed = {pair for pair, conclusion in found.items() if conclusion.status == "fail"}
    confirmed = _confirmed(survey, conclusions, found, failed) if failed else failed
    return {
        pair: conclusion
        for pair, conclusion in found.items()
        if conclusion.status != "fail" or pair in confirmed
    }


def _confirmed(
    survey: Survey,
    conclusions: Mapping[Pair, Conclusion],
    first: Mapping[Pair, Conclusion],
    failed: set[Pair],
) -> set[Pair]:
    beside = survey.moved_point()
    if beside is None:
        return set()
    again = _pool(survey, beside, conclusions, failed, fails=_CONFIRMS, first=_FIRST_AGAIN)
    return {
        pair
        for pair, conclusion in again.items()
        if conclusion.status == "fail"
        and conclusion.shown.deviation * first[pair].shown.deviation > 0.0
    }


def _pool(
    survey: Survey,
    point: Point,
    conclusions: Mapping[Pair, Conclusion],
    wanted: set[Pair],
    *,
    fails: float = _FAILS,
    first: int = _FIRST_PROBE,
) -> dict[Pair, Conclusion]:
    coarse = set(wanted)
    if not coarse:
        return {}
    found: dict[Pair, Conclusion] = {}
    variables = sorted({variable for _, variable in coarse})
    probes = _Probes(survey, point, variables, _PILOT)
    if not all(probes.take(_FIRST_PILOT + probe) for probe in range(_PILOTS)):
        return found
    scatter = max(probes.pools[output].scatter() for output, _ in coarse)
    step = step_for(scatter, _PILOT, _SMALLEST, _LARGEST)
    probes = _Probes(survey, point, variables, step)
    for start, end in pairwise((0, *_SIZES)):
        if not coarse or not all(probes.take(first + probe) for probe in range(start, end)):
            break
        for output in sorted({output for output, _ in coarse}):
            slopes = probes.pools[output].slopes()
            for variable, slope in zip(variables, slopes, strict=True):
                pair = (output, variable)
                if pair not in coarse or slope is None:
                    continue
                limit = fails if end == _SIZES[-1] else 2.0 * _FAILS
                new = _concluded(conclusions[pair], slope, step, fails=limit)
                if new is not None:
                    found[pair] = new
                    coarse.discard(pair)
    return found


class _Probes:
    """Probes in which all variables of interest move together, at one point; a pool per output."""

    def __init__(self, survey: Survey, point: Point, variables: Sequence[int], step: float) -> None:
        self._survey = survey
        self._steps = (step, RATIO * step)
        self._point = point
        self._variables = variables
        self._centres = [output.tensor.double() for output in point.outputs]
        self.pools = [Pool() for _ in point.outputs]

    def take(self, probe: int) -> bool:
        """Take a probe at both steps; False if the function can't be evaluated near by."""
        point, survey = self._point, self._survey
        cotangents = survey.cotangents(point, probe)
        rows = differentiate(survey.subject, point, cotangents).rows
        along = {variable: survey.direction(probe, variable) for variable in self._variables}
        seen = [self._look(along, step) for step in self._steps]
        steps = []
        for look in seen:
            if look is None:
                return False
            steps.append(look)
        for index, pool in enumerate(self.pools):
            cotangent = cotangents[index].double()
            deviations, parts, bends = [], [], []
            for look in steps:
                part = [
                    0.0 if given is None else inner_product(given.double(), look.made[variable])
                    for variable, given in ((v, rows[index][v]) for v in self._variables)
                ]
                high, low = look.high[index], look.low[index]
                deviations.append(inner_product(cotangent, high - low) - sum(part))
                parts.append(part)
                bend = (high + low).sub_(self._centres[index], alpha=2.0).mul_(cotangent)
                bends.append(inner_product(bend, bend))
            if not pool.add(deviations, parts, bends):
                return False
        return True

    def _look(self, along: Mapping[int, torch.Tensor], step: float) -> _Look | None:
        point, subject = self._point, self._survey.subject
        ends = [list(point.values), list(point.values)]
        made = {}
        for variable, direction in along.items():
            for end, sign in zip(ends, (1.0, -1.0), strict=True):
                end[variable] = torch.add(end[variable], direction, alpha=sign * step)
            difference = ends[0][variable].double() - ends[1][variable].double()
            fixed = subject.variables[variable].fixed
            made[variable] = difference if fixed is None else difference.where(~fixed, 0.0)
        try:
            high, low = (
                match_outputs(
                    subject, point.outputs, evaluate(subject, values, recorded=point.recorded)
                )
                for values in ends
            )
        except Exception:  # noqa: BLE001 - the user's function may fail off the given point
            return None
        return _Look([one.double() for one in high], [one.double() for one in low], made)


@dataclass(frozen=True, slots=True)
class _Look:
    """The outputs ahead and behind, and by how much the inputs really differ."""

    high: Sequence[torch.Tensor]
    low: Sequence[torch.Tensor]
    made: Mapping[int, torch.Tensor]


def _concluded(old: Conclusion, slope: Slope, step: float, *, fails: float) -> Conclusion | None:
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
