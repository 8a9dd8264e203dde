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

*Factorial designs.* One backward tells what every direction will change, and two evaluations tell
what a direction changes for every cotangent: ``P`` cotangents and ``Q`` directions make ``P * Q``
probes for ``P`` backwards and ``Q`` pairs of evaluations. These are not independent. What rounding
makes of one direction's outputs takes part in all ``P`` of its probes, and what it makes of one
gradient in ``Q``; the standard errors of slopes allow for both (A. C. Cameron, J. B. Gelbach, D. L.
Miller, "Robust inference with multiway clustering", 2011). Where each direction has a cotangent of
its own, each probe is by itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch

__all__ = [
    "BIAS_OF_KINKS",
    "RATIO",
    "ExtrapolatedSlope",
    "LeastSquares",
    "Regression",
    "SlopeAtTwoSteps",
    "step_for",
]

RATIO = 4.0
"""By how much the two steps differ that a slope is compared at: at 4 times the step kinks do 4
times as much and curvature 16 times. Chosen: at twice it, either would be nearer to what an error
does."""

BIAS_OF_KINKS = 2.0 * 1.5
"""What the slope may be off in units of ``K**2``: the derivation's 3/2, and as much again."""

_CHANGES = 0.5
"""A slope that changes by more than this share of itself when the step grows is no error's. Kinks
make it grow by 3 times itself, curvature by 15 times; what rounding does becomes a fourth."""
_GROWS = RATIO - 1.0
"""By how many times itself the effect of kinks grows, at the larger step: what is allowed and what
is in doubt have to be less together, or kinks could not be told from errors."""
_CERTAIN = 3.0
"""How many standard errors of a slope's growth are in doubt: normal noise is beyond them in 0.3 %
of draws."""
_ALMOST_ALL = 0.9
"""The cosine between changes at one step and at twice it from which on both see the same change,
which is no rounding: that of independent roundings is near zero. Chosen."""

SCATTER = 3e-3
"""What rounding may do to a single probe: a hundred of them then tell 2e-3 at six errors."""


def step_for(scatter: float, pilot: float, least: float, most: float) -> float:
    """Return the step to pool at, from the scatter that rounding causes at a very small step."""
    return min(max(pilot * scatter / SCATTER, least), most)


@dataclass(frozen=True, slots=True)
class SlopeAtTwoSteps:
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
        """Return whether a gradient is wrong: by this many standard errors, and at least this."""
        if not abs(self.value) > errors * self.error + self.bias + least:
            return False
        doubt = _CERTAIN * self.growth_error
        return abs(self.growth) < _CHANGES * abs(self.value) + doubt < _GROWS * abs(self.value)


@dataclass(frozen=True, slots=True)
class ExtrapolatedSlope:
    """How far a gradient is off at step zero, as a share of it.

    Attributes:
        off: the slope, extrapolated to step zero: as curvature goes, with the square of the step,
            or as kinks do, with the step, or between these, whichever is nearest to zero.
        error: its standard error.
        curvature: by how much the slope at the smaller step is off according to the former.
        kinks: what kinks exactly at the point may do to it.
    """

    off: float
    error: float
    curvature: float
    kinks: float = 0.0


@dataclass(frozen=True, slots=True)
class _Round:
    """What a factorial design of probes saw of one output.

    Attributes:
        changes: ``[steps, directions, cotangents]``.
        parts: each variable's part of what was foretold, ``[variables, *changes]``.
        bends: the mean square of the second difference at the smaller step, times the cotangent,
            ``[directions]``.
    """

    changes: torch.Tensor
    parts: torch.Tensor
    bends: torch.Tensor


@dataclass(slots=True)
class Regression:
    """Rounds of probes of one output, at a step or two, and the slopes that fit them.

    Attributes:
        rounds: the probes.
        independent: whether each direction has a cotangent of its own: all rounds are ``P = 1``.
    """

    rounds: list[_Round] = field(default_factory=list)
    independent: bool = False

    def add(self, changes: torch.Tensor, parts: torch.Tensor, bends: torch.Tensor) -> bool:
        """Add a round, but for directions in which something is not finite; False if all are."""
        finite = torch.isfinite(changes).all(2).all(0) & torch.isfinite(bends)
        finite &= torch.isfinite(parts).all(3).all(1).all(0)
        if not bool(finite.any()):
            return False
        self.rounds.append(_Round(changes[:, finite], parts[:, :, finite], bends[finite]))
        return True

    @property
    def count(self) -> int:
        """How many probes there are."""
        return sum(one.changes[0].numel() for one in self.rounds)

    def changes(self, step: int) -> torch.Tensor:
        """Return what was seen at one of the steps, flat."""
        flat = [one.changes[step].reshape(-1) for one in self.rounds]
        return torch.cat(flat) if flat else torch.empty(0, dtype=torch.float64)

    def parts(self, step: int) -> torch.Tensor:
        """Return each variable's part of what was foretold at a step, ``[variables, probes]``."""
        return torch.cat([one.parts[:, step].flatten(1) for one in self.rounds], dim=1)

    def deviations(self, step: int) -> torch.Tensor:
        """Return the changes beyond what was foretold at a step, flat."""
        return self.changes(step) - self.parts(step).sum(0)

    def scatter(self) -> float:
        """Return how far probes at the smaller step lie off, as a share of what was foretold."""
        if not self.rounds:
            return 0.0
        off = float(self.deviations(0).square().sum())
        foretold = float(self.parts(0).sum(0).square().sum())
        return math.sqrt(off / foretold) if foretold > 0.0 else 0.0

    def is_still(self) -> bool:
        """Return whether there are probes and none saw any change."""
        return bool(self.rounds) and not any(bool(one.changes.any()) for one in self.rounds)

    def repeats(self) -> bool:
        """Return whether steps of ``h`` and ``2 h`` see the same change, which is no rounding."""
        narrow, wide = 2.0 * self.changes(0), self.changes(1)
        size = float(narrow.norm() * wide.norm())
        return size > 0.0 and float(narrow @ wide) > _ALMOST_ALL * size

    def slopes_at_two_steps(self) -> list[SlopeAtTwoSteps | None]:
        """Return slopes at ``h`` held against ``RATIO * h``; None for what changes nothing."""
        near, far = (self._fit(step) for step in range(2))
        numbers = zip(
            self.parts(0).square().mean(1).tolist(),
            near.slopes.tolist(),
            self._errors(near.shares).tolist(),
            self._bias_of_kinks().tolist(),
            (far.slopes - near.slopes).tolist(),
            self._errors(far.shares - near.shares).tolist(),
            strict=True,
        )
        return [SlopeAtTwoSteps(*rest) if square > 0.0 else None for square, *rest in numbers]

    def slopes_at_zero(self) -> list[ExtrapolatedSlope] | None:
        """Extrapolate slopes at ``h`` and ``2 h``; None where too few probes could be taken."""
        if not self.rounds:
            return None
        variables = len(self.rounds[0].parts)
        groups = sum(one.changes.shape[1] for one in self.rounds)
        if groups <= variables + 1:
            return None
        narrow, wide = (self._fit(step) for step in range(2))
        curvature = (wide.slopes - narrow.slopes) / 3.0
        bent, kinked = narrow.slopes - curvature, narrow.slopes - 3.0 * curvature
        nearer = kinked.abs() < bent.abs()
        off = torch.where(nearer, kinked, bent).where(kinked * bent > 0.0, 0.0)
        errors = torch.where(
            nearer,
            self._errors(2.0 * narrow.shares - wide.shares),
            self._errors((4.0 * narrow.shares - wide.shares) / 3.0),
        )
        errors = errors * (groups / (groups - variables)) ** 0.5
        if not bool(torch.isfinite(off + errors).all()):
            return None
        numbers = [each.tolist() for each in (off, errors, curvature, self._bias_of_kinks())]
        return [ExtrapolatedSlope(*each) for each in zip(*numbers, strict=True)]

    def _fit(self, step: int) -> LeastSquares:
        return LeastSquares.of(self.parts(step).T, self.deviations(step))

    def _bias_of_kinks(self) -> torch.Tensor:
        bends = torch.cat([one.bends for one in self.rounds])
        return BIAS_OF_KINKS * bends.mean() / self.parts(0).square().mean(1)

    def _errors(self, shares: torch.Tensor) -> torch.Tensor:
        """Return standard errors that allow for common directions and common cotangents.

        Kinks make some probes scatter more than others, so that each counts with what the fit left
        of it (White 1980), with the usual correction for the degrees of freedom that the fit used.
        """
        alone = shares.square().sum(1)
        if self.independent:
            return alone.sqrt()
        total = -alone
        start = 0
        for one in self.rounds:
            _, directions, cotangents = one.changes.shape
            size = directions * cotangents
            part = shares[:, start : start + size].view(-1, directions, cotangents)
            total = total + part.sum(1).square().sum(1) + part.sum(2).square().sum(1)
            start += size
        return torch.maximum(total, alone).sqrt()


@dataclass(frozen=True, slots=True)
class LeastSquares:
    """A least-squares fit: ``shares`` is what each probe's scatter adds to each slope."""

    slopes: torch.Tensor
    shares: torch.Tensor

    @classmethod
    def of(cls, parts: torch.Tensor, deviations: torch.Tensor) -> LeastSquares:
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
