"""Pool many probes into one slope for each gradient, where single probes see too little.

In float32 a kink (relu, max) costs a probe most of its digits. Which kinks a probe meets is chance,
and over many random directions their parts cancel. The changes of an output are fitted, by least
squares, as a sum of one part for each variable: what its gradient foretells times a slope, which is
one where the gradient is right. All variables move together, so that this takes as many evaluations
as for one.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from gradcheck_suite.verification.differences import Estimate
from gradcheck_suite.verification.points import evaluate, match_outputs
from gradcheck_suite.verification.probes import SAFETY, differentiate, inner_product
from gradcheck_suite.verification.verdicts import Conclusion

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gradcheck_suite.verification.points import Point
    from gradcheck_suite.verification.survey import Survey

__all__ = ["pooled_conclusions"]

Pair = tuple[int, int]

# Small against the distance of kinks, large against rounding (2**-24 of the output's size).
_STEP = 2.0**-11
_SIZES = (48, 144)
_FIRST_PROBE = 5000
# Single probes that see errors of this size need no pooling.
_FINE_ENOUGH = 2e-3
# What neither averages out nor is an error: third derivatives along the step, digits of constants.
_BIAS = 1e-3
# Where kinks lie so densely that single probes see less than this (sorting thousands of numbers),
# they bias the slope as well, and nothing averages out.
_TOO_COARSE = 1e-2
_USEFUL = 5e-3
_PASSES = 4.0
# Slopes lie this many standard errors off by chance once in a billion draws of normal noise.
_FAILS = 6.0
_CONFIRMS = 3.0


def pooled_conclusions(
    survey: Survey, conclusions: Mapping[Pair, Conclusion]
) -> dict[Pair, Conclusion]:
    """Conclude anew on the pairs that single probes could not tell finely.

    A failure has to show again at a point beside the given one, where no entry lies exactly on a
    kink, and along steps in proportion to each entry, which follow a function that changes fast
    near zero.

    Returns:
        Conclusions for those pairs alone where pooling says more.
    """
    coarse = {
        pair
        for pair, conclusion in conclusions.items()
        if conclusion.status != "fail"
        and not conclusion.shown.non_finite
        and not conclusion.shown.drowned
        and conclusion.shown.relative_tolerance < _TOO_COARSE
        and conclusion.shown.contributions[pair[1]] > 0.0
        and (
            conclusion.status == "inconclusive"
            or conclusion.shown.relative_tolerance > _FINE_ENOUGH
        )
    }
    found = _pool(survey, survey.point, conclusions, coarse, fails=_FAILS)
    failed = {pair for pair, conclusion in found.items() if conclusion.status == "fail"}
    confirmed = _confirmed(survey, conclusions, failed) if failed else failed
    return {
        pair: conclusion
        for pair, conclusion in found.items()
        if conclusion.status != "fail" or pair in confirmed
    }


def _confirmed(
    survey: Survey, conclusions: Mapping[Pair, Conclusion], failed: set[Pair]
) -> set[Pair]:
    beside = survey.moved_point()
    if beside is None:
        return set()
    for point, relative in ((beside, False), (survey.point, True)):
        again = _pool(survey, point, conclusions, failed, fails=_CONFIRMS, relative=relative)
        failed = {pair for pair, conclusion in again.items() if conclusion.status == "fail"}
    return failed


def _pool(
    survey: Survey,
    point: Point,
    conclusions: Mapping[Pair, Conclusion],
    wanted: set[Pair],
    *,
    fails: float,
    relative: bool = False,
) -> dict[Pair, Conclusion]:
    coarse = set(wanted)
    found: dict[Pair, Conclusion] = {}
    variables = sorted({variable for _, variable in coarse})
    pool = _Pool(survey, point, variables, relative=relative)
    for size in _SIZES:
        if not coarse or not pool.grow(size):
            break
        for output in sorted({output for output, _ in coarse}):
            slopes = _slopes(pool.deviations[output], pool.foretold[output])
            for variable, (slope, error) in zip(variables, slopes, strict=True):
                pair = (output, variable)
                if pair not in coarse:
                    continue
                limit = fails if size == _SIZES[-1] else 2.0 * _FAILS
                new = _concluded(conclusions[pair], slope, error, fails=limit)
                if new is not None:
                    found[pair] = new
                    coarse.discard(pair)
    return found


class _Pool:
    """Probes in which all variables of interest move together, at one point.

    ``foretold`` holds for each output and probe the part of each variable in the change, and
    ``deviations`` what the change was beyond their sum.
    """

    def __init__(
        self, survey: Survey, point: Point, variables: Sequence[int], *, relative: bool
    ) -> None:
        self._relative = relative
        self._survey = survey
        self._point = point
        self._variables = variables
        self._count = 0
        self.deviations: list[list[float]] = [[] for _ in point.outputs]
        self.foretold: list[list[list[float]]] = [[] for _ in point.outputs]

    def grow(self, size: int) -> bool:
        """Take probes up to this many; False if the function can't be evaluated near by."""
        while self._count < size:
            if not self._probe(_FIRST_PROBE + self._count):
                return False
            self._count += 1
        return True

    def _probe(self, probe: int) -> bool:
        point, subject, survey = self._point, self._survey.subject, self._survey
        cotangents = survey.cotangents(point, probe)
        gradients = differentiate(subject, point, cotangents)
        ends = [list(point.values), list(point.values)]
        for variable in self._variables:
            along = survey.direction(probe, variable)
            if self._relative:
                along = survey.in_proportion(variable, along)
            for end, sign in zip(ends, (1.0, -1.0), strict=True):
                end[variable] = torch.add(end[variable], along, alpha=sign * _STEP)
        made = {v: self._displacement(ends, v) for v in self._variables}
        try:
            high, low = (
                match_outputs(
                    subject, point.outputs, evaluate(subject, values, recorded=point.recorded)
                )
                for values in ends
            )
        except Exception:  # noqa: BLE001 - the user's function may fail off the given point
            return False
        for index, (one, two) in enumerate(zip(high, low, strict=True)):
            change = inner_product(cotangents[index].double(), one.double() - two.double())
            row = gradients.rows[index]
            parts = [
                0.0 if part is None else inner_product(part.double(), made[variable])
                for variable, part in ((v, row[v]) for v in self._variables)
            ]
            if not all(map(math.isfinite, (change, *parts))):
                return False
            self.deviations[index].append(change - sum(parts))
            self.foretold[index].append(parts)
        return True

    def _displacement(self, ends: Sequence[Sequence[torch.Tensor]], variable: int) -> torch.Tensor:
        made = ends[0][variable].double() - ends[1][variable].double()
        fixed = self._survey.subject.variables[variable].fixed
        return made if fixed is None else made.where(~fixed, 0.0)


def _slopes(deviations: list[float], foretold: list[list[float]]) -> list[tuple[float, float]]:
    """Return for each variable its slope's distance from one, and the standard error of that."""
    parts = torch.tensor(foretold, dtype=torch.float64)
    rest = torch.tensor(deviations, dtype=torch.float64)
    sizes = parts.square().mean(0).sqrt()
    sizes = sizes.where(sizes > 0.0, 1.0)
    scaled = parts / sizes
    inverse = torch.linalg.pinv(scaled.T @ scaled, hermitian=True)
    slopes = inverse @ (scaled.T @ rest)
    left = rest - scaled @ slopes
    variance = float(left.square().sum()) / max(len(rest) - parts.shape[1], 1)
    errors = (inverse.diagonal() * variance).sqrt()
    empty = parts.square().sum(0) == 0.0
    errors = errors.where(~empty, torch.inf)
    return list(zip((slopes / sizes).tolist(), (errors / sizes).tolist(), strict=True))


def _concluded(old: Conclusion, slope: float, error: float, *, fails: float) -> Conclusion | None:
    tolerance = _PASSES * error + _BIAS
    part = old.shown.contribution
    shown = replace(
        old.shown,
        analytic=part,
        estimate=Estimate(
            value=slope * part,
            truncation=0.0,
            rounding=tolerance * part / SAFETY,
            kink=0.0,
            step=_STEP,
        ),
        trouble=None,
    )
    if abs(slope) > fails * error + _BIAS:
        return Conclusion("fail", shown)
    if abs(slope) <= tolerance < min(old.shown.relative_tolerance, _USEFUL):
        return Conclusion("pass", shown) if old.status == "pass" else None
    return None
