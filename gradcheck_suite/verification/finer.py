"""Conclude on float32 gradients by differences of the function's float64 twin.

Where kinks (relu, max) or rounding leave a single float32 probe too few digits, the twin has them
all. The gradient is the one of the float32 backward; see ``twins`` for what makes them comparable.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from gradcheck_suite.verification.options import precision_of
from gradcheck_suite.verification.probes import Gradients, Measurement, differentiate, measure
from gradcheck_suite.verification.twins import Twin, twin_of
from gradcheck_suite.verification.verdicts import Conclusion, Ruling, judge

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from gradcheck_suite.verification.survey import Survey

__all__ = ["coarse_pairs", "finer_conclusions"]

Pair = tuple[int, int]

# Single probes that see errors of this size need no finer look.
_FINE_ENOUGH = 2e-3
# What is no error: digits of constants, as of an approximated function, and a float32 backward's
# rounding.
_LEAST = 1e-3
_USEFUL = 5e-3
# How steep the difference between function and twin may be, as a share of the gradient.
_ALIKE = 1e-3
_PROBES = 2
# An error shows little along a direction in which the gradient is small by chance: where any shows,
# this many probes decide together, and so many of them by themselves.
_MORE_PROBES = 6
_FEWEST_FAILURES = 3
_CLEAN = _LEAST / 10.0
_FIRST_PROBE, _FIRST_BESIDE = 7500, 7600
# Steps end where a kink may lie on the other side of the point in float32: it has to be seen.
_MIXED = replace(
    precision_of([torch.float64]),
    resolution=_USEFUL,
    rtol=_LEAST,
    target=_LEAST / 4.0,
    steps=tuple(2.0**-exponent for exponent in range(6, 20, 2)),
)
# So many variables are measured one by one at once; of more, halves.
_FEW = 8
# A deviation that the twin's own gradient has as well is no rounding.
_SHARED = 0.5
# Of what rounding within backward was seen to do, an error has to be this many times.
_BEYOND_ROUNDING = 16.0


def coarse_pairs(conclusions: Mapping[Pair, Conclusion]) -> set[Pair]:
    """Return the pairs that single float32 probes could not tell finely."""
    return {
        pair
        for pair, conclusion in conclusions.items()
        if conclusion.status != "fail"
        and not conclusion.meant
        and not conclusion.shown.non_finite
        and not conclusion.shown.drowned
        and conclusion.shown.contributions[pair[1]] > 0.0
        and (
            conclusion.status == "inconclusive"
            or conclusion.shown.relative_tolerance > _FINE_ENOUGH
        )
    }


def finer_conclusions(
    survey: Survey, conclusions: Mapping[Pair, Conclusion]
) -> dict[Pair, Conclusion]:
    """Conclude anew on the pairs that single probes could not tell finely.

    A failure has to show in every probe, at a point beside the given one as well, and has to be in
    the twin's own gradient too or be far beyond what rounding within backward does.

    Returns:
        Conclusions for those pairs alone that the twin decides; none where there is no twin.
    """
    coarse = {
        pair
        for pair in coarse_pairs(conclusions)
        # A function of steps has no slope that wider and smaller steps agree on.
        if not (conclusions[pair].shown.unchanged or conclusions[pair].shown.on_stairs)
    }
    twin = twin_of(survey, survey.point) if coarse else None
    if twin is None:
        return {}
    look = _Look(survey, twin, coarse, _FIRST_PROBE)
    for probe in range(_PROBES):
        if survey.deadline.passed:
            return {}
        look.measure(probe, sorted({variable for _, variable in coarse}))
    look.measure_again()
    found = look.conclusions()
    failed = {pair for pair, conclusion in found.items() if conclusion.status == "fail"}
    confirmed = {pair for pair in failed if look.is_certain(pair)}
    confirmed &= _failing_beside(survey, confirmed)
    return {pair: one for pair, one in found.items() if one.status == "pass" or pair in confirmed}


def _failing_beside(survey: Survey, pairs: Collection[Pair]) -> set[Pair]:
    beside = survey.moved_point() if pairs else None
    twin = None if beside is None else twin_of(survey, beside)
    if twin is None:
        return set()
    look = _Look(survey, twin, pairs, _FIRST_BESIDE)
    for variable in sorted({variable for _, variable in pairs}):
        for probe in range(_MORE_PROBES):
            look.measure(probe, [variable])
    return {pair for pair, one in look.conclusions().items() if one.status == "fail"}


class _Look:
    """Probes of some pairs at one point."""

    def __init__(
        self, survey: Survey, twin: Twin, pairs: Collection[Pair], first_probe: int
    ) -> None:
        self._survey = survey
        self._twin = twin
        self._pairs = pairs
        self._first = first_probe
        self._gradients: dict[int, Gradients] = {}
        self._seen: dict[Pair, list[tuple[Ruling, Measurement, int]]] = defaultdict(list)

    def measure(self, probe: int, group: Sequence[int]) -> None:
        """Measure variables together, and those that this does not settle in smaller groups."""
        if not group:
            return
        point, twin = self._twin.given, self._twin
        cotangents = self._cotangents(probe)
        direction = {variable: self._direction(probe, variable) for variable in group}
        results = measure(
            twin.subject,
            twin.point,
            cotangents,
            self._differentiated(probe),
            {variable: along.double() for variable, along in direction.items()},
            precision=_MIXED,
            thorough=len(group) == 1,
        )
        steep = twin.differs_by(direction, cotangents)
        rest = []
        for variable in group:
            settled = True
            for output in range(len(point.outputs)):
                if (output, variable) not in self._pairs:
                    continue
                result = results[output]
                ruling = _ruling(result, variable, steep[output])
                if ruling == "pass" or len(group) == 1:
                    self._seen[output, variable].append((ruling, result, probe))
                else:
                    settled = False
            if not settled:
                rest.append(variable)
        parts = len(rest) if len(rest) <= _FEW else 2
        size = -(-len(rest) // max(1, parts))
        for start in range(0, len(rest), max(1, size)):
            self.measure(probe, rest[start : start + size])

    def measure_again(self) -> None:
        """Take more probes of every variable with a gradient that did not agree at once."""
        doubtful = {
            variable
            for (_, variable), seen in self._seen.items()
            if any(one.relative_deviation > _CLEAN for _, one, _ in seen)
            and all(ruling != "unresolved" for ruling, _, _ in seen)
        }
        for variable in sorted(doubtful):
            for probe in range(_PROBES, _MORE_PROBES):
                self.measure(probe, [variable])

    def conclusions(self) -> dict[Pair, Conclusion]:
        """Conclude on the pairs of which every probe says something."""
        found = {}
        for pair, seen in self._seen.items():
            rulings = [ruling for ruling, _, _ in seen]
            if len(seen) < _PROBES or not {"pass", "fail"}.issuperset(rulings):
                continue
            measurements = [measurement for _, measurement, _ in seen]
            off = _typical(one.deviation for one in measurements)
            size = _typical(one.contributions[pair[1]] for one in measurements)
            if off <= _LEAST / 2.0 * size:
                worst = max(measurements, key=lambda one: one.relative_tolerance)
                found[pair] = Conclusion("pass", worst, in_double=True)
            elif off > _LEAST * size and rulings.count("fail") >= _FEWEST_FAILURES:
                worst = max(measurements, key=lambda one: one.relative_deviation)
                found[pair] = Conclusion("fail", worst, in_double=True)
        return found

    def is_certain(self, pair: Pair) -> bool:
        """Say whether rounding within backward can't be what makes a gradient look wrong."""
        output, variable = pair
        _, result, probe = max(self._seen[pair], key=lambda one: one[1].relative_deviation)
        if self._is_shared(output, variable, probe, result):
            return True
        noise = self._survey.rounding_of_backward(pair) * result.contribution
        return abs(result.deviation) > _BEYOND_ROUNDING * noise

    def _is_shared(self, output: int, variable: int, probe: int, result: Measurement) -> bool:
        """Say whether the twin's own gradient is as wrong."""
        twin = self._twin
        along = self._direction(probe, variable).double()
        cotangents = [one.double() for one in self._cotangents(probe)]
        try:
            theirs = differentiate(twin.subject, twin.point, cotangents).rows[output][variable]
        except Exception:  # noqa: BLE001 - the user's backward need not take float64
            return False
        ours = self._differentiated(probe).rows[output][variable]
        if theirs is None or ours is None:
            return theirs is ours
        apart = float(((theirs - ours.double()) * along).sum())
        return abs(apart) <= _SHARED * abs(result.deviation)

    def _cotangents(self, probe: int) -> tuple[torch.Tensor, ...]:
        return self._survey.cotangents(self._twin.given, self._first + probe)

    def _direction(self, probe: int, variable: int) -> torch.Tensor:
        return self._survey.direction(self._first + probe, variable)

    def _differentiated(self, probe: int) -> Gradients:
        if probe not in self._gradients:
            self._gradients[probe] = differentiate(
                self._survey.subject, self._twin.given, self._cotangents(probe)
            )
        return self._gradients[probe]


def _typical(numbers: Iterable[float]) -> float:
    known = list(numbers)
    return math.sqrt(math.fsum(number * number for number in known) / len(known))


def _ruling(result: Measurement, variable: int, steep: float) -> Ruling:
    part = result.contributions[variable]
    if not steep <= _ALIKE * part or result.unchanged:
        return "unresolved"
    return judge(result, variable, _MIXED)
