"""Slopes of what was seen over what was foretold, pooled over many probes, and their errors.

A probe moves every variable along a random direction, ``h`` forward and ``h`` back, and weighs the
outputs with random signs ``g``. ``F``, what the gradients foretell of the change, is a sum of one
part for each variable; ``D`` is what the change was beyond ``F``. Where the gradients are right the
least-squares fit of ``D`` by the parts has slopes of zero: what single probes scatter, by rounding
and by kinks, has random signs and averages out. Three things do not average out.

*Kinks.* Let an output have slope ``a`` before a kink and ``b`` behind it, along a line that passes
at distance ``z < h`` from it. From either side the central difference is off by ``c = (b - a) (h -
z)``, with the sign that speaks against the side's own slope, and the second difference ``f(x + hv)
- 2 f(x) + f(x - hv)`` is ``c`` as well. With the point as likely on the one side as on the other
and anywhere within ``h``, the mean over both sides is ``<D F> = -h (b - a) ** 2 <h - z>``, which is
``-h**2 (b - a)**2 / 2``, while ``<c**2> = h**2 (b - a)**2 / 3``. Hence, whatever ``a`` and ``b``
and however many kinks there are, the slope is off by ``-3/2 K**2`` with

    K**2 = <sum of (g * second difference)**2> / <F**2>,

and ``K**2`` is measured along with the slope. It grows like ``h``.

*Curvature.* A central difference is off by ``h**3 f''' / 3``, a slope by ``h**2 f''' / (6 f')``,
while ``K**2`` is ``h**2 f''**2 / (4 f'**2)``. For powers ``x**p`` with p from 1/2 down, where
entries near zero make this large, the first is at most ``4/3`` of ``3/2 K**2``. It grows like
``h**2``.

*Errors.* They do not grow with ``h`` at all.

So a slope counts only beyond twice ``3/2 K**2``, and only if the slope at a step four times as
large is certainly not off as much more as a kink or curvature makes it, 4 or 16 times as much.
Where kinks are so dense that their effect no longer grows, ``K**2`` is of the size of that effect.

*The step.* Rounding scatters slopes like ``1 / h``, kinks like the square root of ``h``: there are
fewer within it. ``step_for`` takes the smallest step at which rounding scatters single probes by
no more than ``SCATTER``, from what it does at a step so small that nothing else is seen.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch

__all__ = ["BIAS_OF_KINKS", "RATIO", "Fit", "Pool", "Slope", "step_for"]

RATIO = 4.0
"""By how much the two steps differ that a slope is compared at."""

BIAS_OF_KINKS = 2.0 * 1.5
"""What the slope may be off in units of ``K**2``: the derivation's 3/2, and as much again."""

# A slope that changes by more than this share of itself when the step grows is no error's. Kinks
# make it grow by 3 times itself, curvature by 15 times; what rounding does becomes a fourth.
_CHANGES = 0.5
_GROWS = RATIO - 1.0
_CERTAIN = 3.0


SCATTER = 3e-3
"""What rounding may do to a single probe: a hundred of them then tell 2e-3 at six errors."""


def step_for(scatter: float, pilot: float, least: float, most: float) -> float:
    """Return the step to pool at, from the scatter that rounding causes at a very small step."""
    return min(max(pilot * scatter / SCATTER, least), most)


@dataclass(frozen=True, slots=True)
class Slope:
    """How far the gradient with respect to one variable is off, as a share of it.

    Attributes:
        value: the slope of deviations over what the gradient foretells.
        error: its standard error.
        bias: what kinks and curvature may do to it.
        growth: by how much it changed at a step ``RATIO`` times as large.
        growth_error: the standard error of that.
    """

    value: float
    error: float
    bias: float
    growth: float
    growth_error: float

    def is_off(self, errors: float, least: float) -> bool:
        """Return whether the gradient is wrong: by this many standard errors, and by at least this."""
        if not abs(self.value) > errors * self.error + self.bias + least:
            return False
        doubt = _CERTAIN * self.growth_error
        return abs(self.growth) < _CHANGES * abs(self.value) + doubt < _GROWS * abs(self.value)


@dataclass(slots=True)
class Pool:
    """What probes saw of one output at two steps, ``h`` and ``RATIO * h``.

    Attributes:
        deviations: for each probe and step the change beyond what was foretold, over the step.
        parts: for each probe and step the part of each variable in what was foretold, likewise.
        bends: for each probe and step the sum of squares of the second difference, times the
            cotangent and over the step.
    """

    deviations: list[list[float]] = field(default_factory=list)
    parts: list[list[list[float]]] = field(default_factory=list)
    bends: list[list[float]] = field(default_factory=list)

    def add(self, deviations: list[float], parts: list[list[float]], bends: list[float]) -> bool:
        """Note a probe, unless something in it is not finite."""
        numbers = (*deviations, *bends, *(part for row in parts for part in row))
        if not all(map(math.isfinite, numbers)):
            return False
        self.deviations.append(deviations)
        self.parts.append(parts)
        self.bends.append(bends)
        return True

    def scatter(self) -> float:
        """Return how far probes at the smaller step lie off, as a share of what was foretold."""
        off = math.fsum(near * near for near, *_ in self.deviations)
        foretold = math.fsum(sum(near) ** 2 for near, *_ in self.parts)
        return math.sqrt(off / foretold) if foretold > 0.0 else 0.0

    def slopes(self) -> list[Slope | None]:
        """Return the slope of each variable; None for one that changes nothing."""
        deviations = torch.tensor(self.deviations, dtype=torch.float64)
        parts = torch.tensor(self.parts, dtype=torch.float64)
        bends = torch.tensor(self.bends, dtype=torch.float64)
        near, far = (Fit.of(parts[:, at], deviations[:, at]) for at in range(2))
        squares = parts[:, 0].square().mean(0)
        biases = BIAS_OF_KINKS * bends[:, 0].mean() / squares
        growth = far.slopes - near.slopes
        growth_errors = _errors(far.shares - near.shares)
        return [
            Slope(*map(float, numbers)) if float(square) > 0.0 else None
            for square, *numbers in zip(
                squares,
                near.slopes,
                _errors(near.shares),
                biases,
                growth,
                growth_errors,
                strict=True,
            )
        ]


@dataclass(frozen=True, slots=True)
class Fit:
    """A least-squares fit: ``shares`` is what each probe's scatter adds to each slope."""

    slopes: torch.Tensor
    shares: torch.Tensor

    @classmethod
    def of(cls, parts: torch.Tensor, deviations: torch.Tensor) -> Fit:
        """Fit ``[probes]`` deviations by the ``[probes, variables]`` parts of each variable."""
        sizes = parts.square().mean(0).sqrt()
        sizes = sizes.where(sizes > 0.0, 1.0)
        scaled = parts / sizes
        inverse = torch.linalg.pinv(scaled.T @ scaled, hermitian=True)
        weights = inverse @ scaled.T / sizes[:, None]
        slopes = weights @ deviations
        count, used = parts.shape
        left = deviations - parts @ slopes
        return cls(slopes, weights * left * math.sqrt(count / max(count - used, 1)))


def _errors(shares: torch.Tensor) -> torch.Tensor:
    """Return standard errors of slopes.

    Kinks make some probes scatter more than others, so that each counts with what the fit left of
    it (White 1980), with the usual correction for the degrees of freedom that the fit used.
    """
    return shares.square().sum(1).sqrt()
