"""How far rounding moves an analytic gradient, or a whole function, in units in the last place.

Inputs that differ in their last bit are as good as the given ones. A backward that subtracts large
numbers gives quite another gradient for them, which is no mistake.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from gradcheck_suite.verification.numerics.derivative import differentiate, measure
from gradcheck_suite.verification.numerics.directions import generator_for, random_signs
from gradcheck_suite.verification.numerics.evaluation_point import Point, shifted_point
from gradcheck_suite.verification.numerics.monte_carlo_arithmetic import random_rounding

if TYPE_CHECKING:
    from collections.abc import Collection

    from gradcheck_suite.verification.first_order.probe_context import ProbeContext
    from gradcheck_suite.verification.numerics.decision import Outcome, Pair

__all__ = ["UlpNoise"]

_STREAM = 3
"""Stream of the first draw, the next ones follow; any number does that no other stream uses."""
_DRAWS = 3
"""How many times last bits are drawn anew: the few roundings behind one number may add up to much
the same by chance. A bound on cost."""
_ANOTHER = 0.1
"""A deviation that changes by more than this share of itself with the last bits is no property of
the function. Chosen: an error does not change at all, noise by all of itself."""
_NOISY = 2.0**-10
"""An output that the last bit of the inputs changes by less than this share is no noise. Chosen:
rounding noise changes by all of itself, others by some eps."""


class UlpNoise:
    """What other last bits do to a function.

    Attributes:
        noise: for each (output, variable) pair by how much rounding was seen to move the analytic
            gradient, as a share of it.
    """

    def __init__(self, context: ProbeContext) -> None:
        self.noise: dict[Pair, float] = defaultdict(float)
        self._context = context
        self._points: dict[int, Point | None] = {}

    def perturb_inputs(self, variables: Collection[int]) -> None:
        """Measure what inputs that differ in their last bit do to some analytic gradients."""
        context = self._context
        cotangents = context.cotangents(context.point, 0)
        for draw in range(_DRAWS):
            perturbed = replace(context.point, values=tuple(self._values(draw)))
            try:
                other = differentiate(context.subject, perturbed, cotangents)
            except Exception:  # noqa: BLE001 - the user's function may fail off the given point
                break
            rows = zip(context.gradients.rows, other.rows, strict=True)
            for output, (row, second) in enumerate(rows):
                for variable in variables:
                    pair = (output, variable)
                    self.noise[pair] = max(
                        self.noise[pair],
                        _spread(row[variable], second[variable]),
                        context.breaches.rounding.get(pair, 0.0),
                    )

    def perturb_results(self, pairs: Collection[Pair]) -> None:
        """Measure what the roundings on the way do to some analytic gradients."""
        context = self._context
        cotangents = context.cotangents(context.point, 0)
        seen: dict[Pair, list[float]] = {pair: [] for pair in pairs}
        for draw in range(_DRAWS):
            try:
                with random_rounding(draw):
                    other = differentiate(context.subject, context.point, cotangents)
            except Exception:  # noqa: BLE001 - nothing has to run where numbers are changed
                return
            for (output, variable), spreads in seen.items():
                rows = context.gradients.rows[output][variable], other.rows[output][variable]
                spreads.append(_spread(*rows))
        for pair, spreads in seen.items():
            # One draw may land beyond a threshold within the function.
            usual = sorted(spreads)[len(spreads) // 2]
            self.noise[pair] = max(self.noise[pair], usual)

    def of_backward(self, pair: Pair) -> float:
        """Measure how far rounding moves an analytic gradient, as a share of it."""
        self.perturb_inputs({pair[1]})
        self.perturb_results({pair})
        return self.noise[pair]

    def explains(self, pair: Pair, failed: Outcome) -> bool:
        """Return whether inputs that differ in their last bit give quite another deviation.

        An output that is zero but for rounding, such as a layer norm over one element, has
        whatever derivative its last bits have.

        Args:
            pair: the output and the variable.
            failed: a measurement of that variable alone, at the given point.
        """
        context, known = self._context, failed.measurement
        output, variable = pair
        cotangents = context.cotangents(context.point, failed.probe)
        for draw in range(_DRAWS):
            point = self._point(draw)
            if point is None:
                return False
            here, there = (one.outputs[output].tensor.double() for one in (context.point, point))
            if _spread(here, there) < _NOISY:
                return False
            try:
                gradients = differentiate(context.subject, point, cotangents)
            except Exception:  # noqa: BLE001 - the user's function may fail off the given point
                return False
            again = measure(
                context.subject,
                point,
                cotangents,
                gradients,
                {variable: context.direction(failed.probe, variable)},
                precision=context.precision,
                thorough=True,
            )[output]
            seen = max(_ANOTHER * abs(known.deviation), known.tolerance + again.tolerance)
            if abs(again.deviation - known.deviation) > seen:
                return True
        return False

    def _point(self, draw: int) -> Point | None:
        if draw not in self._points:
            point = self._context.point
            offsets = [
                torch.where(torch.isfinite(value), near - value, 0.0)
                for value, near in zip(point.values, self._values(draw), strict=True)
            ]
            self._points[draw] = shifted_point(self._context.subject, point, offsets)
        return self._points[draw]

    def _values(self, draw: int) -> list[torch.Tensor]:
        return [
            _perturbed(
                value,
                generator_for(self._context.seed, _STREAM + draw, index),
                self._context.precision.eps,
            )
            for index, value in enumerate(self._context.point.values)
        ]


def _perturbed(value: torch.Tensor, generator: torch.Generator, eps: float) -> torch.Tensor:
    """Move every value to one of its neighbours; zeros stay, as they may be special.

    Where the function computes more coarsely than its inputs are, it is a neighbour by ``eps``.
    """
    if value.dtype is torch.float64 and eps == torch.finfo(torch.float32).eps:
        return value + eps * random_signs(value, generator).sign() * value.abs()
    towards = torch.inf * random_signs(value, generator)
    return torch.where(value == 0, value, torch.nextafter(value, towards))


def _spread(one: torch.Tensor | None, two: torch.Tensor | None) -> float:
    """Return the 2-norm of the difference relative to that of the first; 0 where unknown."""
    if one is None or two is None:
        return 0.0
    size = float(torch.linalg.vector_norm(one.double()))
    difference = float(torch.linalg.vector_norm(one.double() - two.double()))
    return difference / size if size > 0.0 and math.isfinite(difference) else 0.0
