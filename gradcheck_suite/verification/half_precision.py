"""Measure gradients in bfloat16 and float16, natively, by pooling many coarse probes.

Two or three digits leave no single probe a derivative worth the name. Over many random probes the
changes of the output, against those that the gradient foretells, lie on a line whose slope is one
if the gradient is right; roundings scatter about it and average out. Two widths of steps,
extrapolated as in ``differences``, take out what curvature does to the slope.

A slope tells an error that most of the gradient has. It does not tell one wrong entry of many: that
takes float32 or float64, and the report says so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from gradcheck_suite.verification.differences import Estimate
from gradcheck_suite.verification.points import evaluate, match_outputs
from gradcheck_suite.verification.probes import Measurement, differentiate, inner_product
from gradcheck_suite.verification.survey import Survey
from gradcheck_suite.verification.verdicts import Conclusion, Outcome

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["PooledSurvey"]

_STEP = 2.0**-4
_POOLS = (16, 64, 256, 1024)
# Only slopes that lie this many standard errors off at the last pool but one get the last one.
_WORTH = 2.0
# How many standard errors a slope may lie off before it counts; at 256 probes 5 of them are reached
# by chance once in a million.
_PASSES = 3.0
_FAILS = 5.0
# Roundings within a backward do not all average out: constants in it are rounded once for all.
_BIAS = 0.01
_ALMOST_ALL = 0.9


@dataclass(slots=True)
class _Pool:
    """What was seen and what was foretold, of one (output, variable) pair, by two widths."""

    seen: list[tuple[float, float]] = field(default_factory=list)
    foretold: list[tuple[float, float]] = field(default_factory=list)

    def add(self, seen: tuple[float, float], foretold: tuple[float, float]) -> None:
        if all(map(math.isfinite, (*seen, *foretold))):
            self.seen.append(seen)
            self.foretold.append(foretold)

    def slopes(self) -> tuple[float, float, float] | None:
        """Return the slope at step zero, its standard error, and what curvature changed.

        None if there is nothing to be on a line with.
        """
        if len(self.seen) < _POOLS[0] // 2:
            return None
        lines = [
            _line([seen[width] for seen in self.seen], [told[width] for told in self.foretold])
            for width in (0, 1)
        ]
        (narrow, narrow_error), (wide, wide_error) = lines
        if not math.isfinite(narrow_error + wide_error):
            return None
        curvature = (wide - narrow) / 3.0
        error = math.hypot(4.0 / 3.0 * narrow_error, wide_error / 3.0)
        return narrow - curvature, error, curvature

    def repeats(self) -> bool:
        """Say whether both widths see the same change, so that it is no rounding."""
        if len(self.seen) < _POOLS[0] // 2:
            return False
        narrow = [2.0 * seen[0] for seen in self.seen]
        wide = [seen[1] for seen in self.seen]
        size = math.sqrt(sum(x * x for x in narrow) * sum(y * y for y in wide))
        return size > 0.0 and sum(map(float.__mul__, narrow, wide)) > _ALMOST_ALL * size

    def still(self) -> bool:
        """Say whether no probe saw any change."""
        return bool(self.seen) and all(seen == (0.0, 0.0) for seen in self.seen)


def _line(seen: Sequence[float], foretold: Sequence[float]) -> tuple[float, float]:
    """Fit a line through the origin by least squares: its slope and the slope's standard error."""
    square = sum(x * x for x in foretold)
    if square == 0.0:
        return math.nan, math.inf
    slope = sum(x * y for x, y in zip(foretold, seen, strict=True)) / square
    left = sum((y - slope * x) ** 2 for x, y in zip(foretold, seen, strict=True))
    return slope, math.sqrt(left / (len(seen) - 1) / square)


class PooledSurvey(Survey):
    """A survey for tensors in half precision: each variable by itself, over many probes."""

    def run(self) -> dict[tuple[int, int], Conclusion]:
        """Measure every pair and conclude on it."""
        found: dict[tuple[int, int], Conclusion] = {}
        for variable in self._variables():
            found.update(self._run(variable))
        for pair, conclusion in found.items():
            if conclusion.status == "fail":
                self._outcomes[pair].append(Outcome("fail", conclusion.shown, False, 0))
        return found

    def _run(self, variable: int) -> dict[tuple[int, int], Conclusion]:
        pools = [_Pool() for _ in self.point.outputs]
        done: dict[tuple[int, int], Conclusion] = {}
        probe = 0
        for size in _POOLS:
            while probe < size:
                self._probe(probe, variable, pools)
                probe += 1
            final = size == _POOLS[-1]
            for output, pool in enumerate(pools):
                if (output, variable) not in done:
                    conclusion = self._conclude(output, variable, pool, final=final)
                    if conclusion is not None:
                        done[output, variable] = conclusion
            if len(done) == len(pools):
                break
        return done

    def _probe(self, probe: int, variable: int, pools: Sequence[_Pool]) -> None:
        point, subject = self.point, self.subject
        cotangents = self.cotangents(point, probe)
        gradients = self.gradients if probe == 0 else differentiate(subject, point, cotangents)
        along = self.direction(probe, variable).double()
        fixed = subject.variables[variable].fixed
        changes: list[list[float]] = [[] for _ in pools]
        foretold: list[list[float]] = [[] for _ in pools]
        for step in (_STEP, 2.0 * _STEP):
            value = point.values[variable]
            ends = [(value.double() + sign * step * along).to(value.dtype) for sign in (1.0, -1.0)]
            made = ends[0].double() - ends[1].double()
            if fixed is not None:
                made = made.where(~fixed, 0.0)
            try:
                high, low = (self._values(variable, end) for end in ends)
            except Exception:  # noqa: BLE001 - the user's function may fail off the given point
                return
            for index, (one, two) in enumerate(zip(high, low, strict=True)):
                difference = one.double() - two.double()
                finite = point.finite[index]
                if finite is not None:
                    difference = difference.where(finite, 0.0)
                changes[index].append(inner_product(cotangents[index].double(), difference))
                part = gradients.rows[index][variable]
                foretold[index].append(0.0 if part is None else inner_product(part.double(), made))
        for pool, seen, expected in zip(pools, changes, foretold, strict=True):
            pool.add((seen[0], seen[1]), (expected[0], expected[1]))

    def _values(self, variable: int, value: torch.Tensor) -> list[torch.Tensor]:
        values = list(self.point.values)
        values[variable] = value
        produced = evaluate(self.subject, values, recorded=self.point.recorded)
        return match_outputs(self.subject, self.point.outputs, produced)

    def _conclude(
        self, output: int, variable: int, pool: _Pool, *, final: bool
    ) -> Conclusion | None:
        part = self.gradients.rows[output][variable]
        if part is not None and not bool(torch.isfinite(part).all()):
            shown = self._measurement(output, variable, part, 0.0, math.inf)
            return Conclusion("inconclusive", shown, "the analytic gradient is not finite")
        if part is None or not bool(part.any()):
            return self._conclude_on_zero(output, variable, pool, part, final=final)
        slopes = pool.slopes()
        if slopes is not None:
            return self._conclude_on_slope(output, variable, pool, part, slopes, final=final)
        if not final:
            return None
        shown = self._measurement(output, variable, part, 0.0, math.inf)
        return Conclusion("inconclusive", shown, "too few probes could be evaluated")

    def _conclude_on_slope(
        self,
        output: int,
        variable: int,
        pool: _Pool,
        part: torch.Tensor,
        slopes: tuple[float, float, float],
        *,
        final: bool,
    ) -> Conclusion | None:
        slope, error, curvature = slopes
        off = abs(slope - 1.0)
        # Curvature makes a slope of twice the width lie four times as far off, kinks twice as far
        # (see ``slopes``): the extrapolation leaves no more than the two widths differ by.
        slack = _BIAS + 3.0 * abs(curvature)
        shown = self._measurement(output, variable, part, slope - 1.0, _PASSES * error + slack)
        last = final or (len(pool.seen) >= _POOLS[-2] and off <= _WORTH * error + slack)
        wanted = self.precision.resolution if last else self.precision.target
        if off <= _PASSES * error + slack and shown.relative_tolerance <= wanted:
            return Conclusion("pass", shown)
        if not last:
            return None
        if off > _FAILS * error + slack:
            return Conclusion("fail", shown)
        return Conclusion(
            "inconclusive",
            shown,
            f"over {len(pool.seen)} pooled probes an error below "
            f"{100.0 * shown.relative_tolerance:.2g}% of the gradient could not be seen; "
            "dtype='float64' sees more",
        )

    def _conclude_on_zero(
        self, output: int, variable: int, pool: _Pool, part: torch.Tensor | None, *, final: bool
    ) -> Conclusion | None:
        shown = self._measurement(output, variable, part, 0.0, 0.0)
        if pool.still():
            return Conclusion("pass", shown)
        if not final and len(pool.seen) < _POOLS[-2]:
            return None
        sizes = [abs(seen[0]) / (2.0 * _STEP) for seen in pool.seen]
        if pool.repeats():
            typical = sorted(sizes)[len(sizes) // 2]
            return Conclusion(
                "fail", self._measurement(output, variable, part, typical, 0.25 * typical)
            )
        return Conclusion(
            "inconclusive",
            self._measurement(output, variable, part, 0.0, max(sizes, default=math.inf)),
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
            product = part.double() * self.direction(0, variable).double()
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
                rounding=tolerance * unit / 4.0,
                kink=0.0,
                step=_STEP,
            ),
            magnitude=1.0,
            eps=0.0,
            unchanged=False,
            missing=part is None,
            non_finite=part is not None and not math.isfinite(float(part.double().sum())),
            masked=self.point.finite[output] is not None,
        )
