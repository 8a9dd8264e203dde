"""Probe some variables along many directions, and weigh what each changes by many cotangents.

One backward tells what every direction will change, and two evaluations tell what a direction
changes for every cotangent: ``P`` cotangents and ``Q`` directions make ``P * Q`` probes for ``P``
backwards and ``Q`` pairs of evaluations. These are not independent. What rounding makes of one
direction's outputs takes part in all ``P`` of its probes, and what it makes of one gradient in
``Q``; the standard errors of slopes allow for both (A. C. Cameron, J. B. Gelbach, D. L. Miller,
"Robust inference with multiway clustering", 2011).

Where the function has a twin in float64, what the twin changes beyond its slope, by kinks and by
curvature, is taken off what is seen: rounding alone is left to scatter (a control variate).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from gradcheck_suite.verification.numerics.directional_derivative import differentiate
from gradcheck_suite.verification.numerics.evaluation_point import outputs_at
from gradcheck_suite.verification.numerics.regression import BIAS_OF_KINKS, Fit

if TYPE_CHECKING:
    from gradcheck_suite.verification.first_order.float64_reference import Float64Reference
    from gradcheck_suite.verification.first_order.probe_context import ProbeContext
    from gradcheck_suite.verification.numerics.evaluation_point import Point
    from gradcheck_suite.verification.progress import Deadline

__all__ = ["Pool", "Slope", "crossed_probes"]

# Gradients of this many entries in all are kept at a time, but always a few.
_MOST_KEPT = 2**25
_FEWEST = 2
# Random draws of one round and the next.
_APART = 5_000
_ALMOST_ALL = 0.9
_STEPS = 2


@dataclass(frozen=True, slots=True)
class Slope:
    """How far a gradient is off at step zero, as a share of it.

    Attributes:
        off: the slope of what was seen over what was foretold, less one, extrapolated to step
            zero: as curvature goes, with the square of the step, or as kinks do (see ``slopes``),
            with the step, or between these, whichever is nearest to zero.
        error: its standard error.
        curvature: by how much the slope at the smaller step is off according to the former.
        kinks: what kinks exactly at the point may do to it, where a twin shows them.
    """

    off: float
    error: float
    curvature: float
    kinks: float = 0.0


@dataclass(frozen=True, slots=True)
class _Round:
    """What crossed probes saw of one output at two steps.

    Attributes:
        seen: ``[steps, directions, cotangents]``.
        parts: each variable's part of what was foretold, ``[variables, *seen]``.
        bends: the mean square of what kinks at the point may add, ``[directions]``.
    """

    seen: torch.Tensor
    parts: torch.Tensor
    bends: torch.Tensor


@dataclass(slots=True)
class Pool:
    """All rounds of probes of one output."""

    rounds: list[_Round] = field(default_factory=list)

    @property
    def count(self) -> int:
        """How many probes there are."""
        return sum(one.seen[0].numel() for one in self.rounds)

    def seen(self, step: int) -> torch.Tensor:
        """Return what was seen at one of the two steps, flat."""
        flat = [one.seen[step].reshape(-1) for one in self.rounds]
        return torch.cat(flat) if flat else torch.empty(0, dtype=torch.float64)

    def slopes(self) -> list[Slope] | None:
        """Return the slope of each variable; None if there is nothing to be on a line with."""
        if not self.rounds:
            return None
        variables = len(self.rounds[0].parts)
        groups = sum(one.seen.shape[1] for one in self.rounds)
        if groups <= variables + 1:
            return None
        narrow, wide = (self._fit(step) for step in range(_STEPS))
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
        numbers = [each.tolist() for each in (off, errors, curvature, self._kinks())]
        return [Slope(*each) for each in zip(*numbers, strict=True)]

    def _kinks(self) -> torch.Tensor:
        """Return by how much kinks at the point put each slope off (see ``slopes``)."""
        parts = torch.cat([one.parts[:, 0].flatten(1) for one in self.rounds], dim=1)
        bends = torch.cat([one.bends for one in self.rounds])
        return BIAS_OF_KINKS * bends.mean() / parts.square().mean(1)

    def _fit(self, step: int) -> Fit:
        parts = torch.cat([one.parts[:, step].flatten(1) for one in self.rounds], dim=1)
        return Fit.of(parts.T, self.seen(step) - parts.sum(0))

    def _errors(self, shares: torch.Tensor) -> torch.Tensor:
        """Return standard errors that allow for common directions and common cotangents."""
        alone = shares.square().sum(1)
        total = -alone
        start = 0
        for one in self.rounds:
            _, directions, cotangents = one.seen.shape
            size = directions * cotangents
            part = shares[:, start : start + size].view(-1, directions, cotangents)
            total = total + part.sum(1).square().sum(1) + part.sum(2).square().sum(1)
            start += size
        return torch.maximum(total, alone).sqrt()

    def repeats(self) -> bool:
        """Return whether both steps see the same change, so that it is no rounding."""
        narrow, wide = 2.0 * self.seen(0), self.seen(1)
        size = float(narrow.norm() * wide.norm())
        return size > 0.0 and float(narrow @ wide) > _ALMOST_ALL * size

    def still(self) -> bool:
        """Return whether there are probes and none saw any change."""
        return bool(self.rounds) and not any(bool(one.seen.any()) for one in self.rounds)


def crossed_probes(
    context: ProbeContext,
    point: Point,
    variables: Sequence[int],
    pools: Sequence[Pool],
    *,
    steps: tuple[float, float],
    directions: int,
    cotangents: int,
    stream: int,
    clock: Deadline,
    reference: Float64Reference | None = None,
) -> None:
    """Add a round of probes to the pool of each output.

    Nothing is added where the function can't be evaluated near by, nor what is not finite.

    Args:
        context: gives the function, and random directions and cotangents.
        point: where.
        variables: what moves, all at once.
        pools: one for each output.
        steps: both steps, the smaller one first.
        directions: how many, at most.
        cotangents: how many, at most.
        stream: which of the context's random draws are used.
        clock: when to stop; what was seen by then counts.
        reference: the function in float64 at the same point, if it has one.
    """
    subject = context.subject
    first = stream + _APART * len(pools[0].rounds)
    entries = sum(point.values[variable].numel() for variable in variables)
    most = max(_FEWEST, _MOST_KEPT // max(1, entries * len(pools)))
    weights: list[list[torch.Tensor]] = [[] for _ in pools]
    rows: list[list[list[torch.Tensor]]] = [[[] for _ in variables] for _ in pools]
    for number in range(min(cotangents, most)):
        drawn = context.cotangents(point, first + number)
        is_known = first + number == 0 and point is context.point
        known = context.gradients if is_known else differentiate(subject, point, drawn)
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
    seen: list[list[torch.Tensor]] = [[] for _ in pools]
    parts: list[list[torch.Tensor]] = [[] for _ in pools]
    bends: list[list[torch.Tensor]] = [[] for _ in pools]
    for number in range(directions):
        look = _look(context, point, variables, first + number, steps=steps, reference=reference)
        if look is None:
            break
        for output, (pool_seen, pool_parts) in enumerate(zip(seen, parts, strict=True)):
            pool_seen.append(
                torch.stack([stacked[output] @ one.differences[output] for one in look])
            )
            bends[output].append(stacked[output].square().mean(0) @ look[0].bends[output])
            pool_parts.append(
                torch.stack(
                    [
                        torch.stack([(gradient @ one.made[place]).double() for one in look])
                        for place, gradient in enumerate(gradients[output])
                    ]
                )
            )
        if clock.passed:
            break
    for output, pool in enumerate(pools):
        if seen[output]:
            one = _Round(
                torch.stack(seen[output], dim=1),
                torch.stack(parts[output], dim=2),
                torch.stack(bends[output]),
            )
            finite = torch.isfinite(one.seen).all(2).all(0)
            finite &= torch.isfinite(one.parts).all(3).all(1).all(0)
            if bool(finite.any()):
                pool.rounds.append(
                    _Round(one.seen[:, finite], one.parts[:, :, finite], one.bends[finite])
                )


@dataclass(frozen=True, slots=True)
class _Look:
    """What one direction does at one step, flat.

    Attributes:
        differences: of each output.
        bends: of each output the square of what kinks at the point may add to them.
        made: the displacement of each variable.
    """

    differences: Sequence[torch.Tensor]
    bends: Sequence[torch.Tensor]
    made: Sequence[torch.Tensor]


def _look(
    context: ProbeContext,
    point: Point,
    variables: Sequence[int],
    probe: int,
    *,
    steps: Sequence[float],
    reference: Float64Reference | None,
) -> list[_Look] | None:
    """Return what is seen at each step; None where the function can't be evaluated."""
    subject = context.subject
    along = {variable: context.direction(probe, variable).double() for variable in variables}
    found = []
    for step in steps:
        ends = [list(point.values), list(point.values)]
        made = {}
        for variable, direction in along.items():
            value = point.values[variable]
            for end, sign in zip(ends, (1.0, -1.0), strict=True):
                end[variable] = (value.double() + sign * step * direction).to(value.dtype)
            moved = ends[0][variable].double() - ends[1][variable].double()
            fixed = subject.variables[variable].fixed
            moved = moved if fixed is None else moved.where(~fixed, 0.0)
            # Differences of numbers in half precision lose nothing.
            made[variable] = moved.float()
        produced = outputs_at(subject, point, ends)
        known = None if reference is None else reference.change_along(made, ends)
        if produced is None or (reference is not None and known is None):
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
        found.append(_Look(differences, bends, [moved.reshape(-1) for moved in made.values()]))
    return found
