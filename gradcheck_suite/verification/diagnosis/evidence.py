"""Probes of one wrong gradient, against which any claim about it is tested.

A claim is a gradient that would be right: it has to agree with the numeric derivative along every
probe, each with a cotangent and a direction of its own, within the measured error. Testing one
costs inner products and no call of the function.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from gradcheck_suite.verification.numerics.derivative import (
    SAFETY,
    Measurement,
    differentiate,
    measure,
)
from gradcheck_suite.verification.numerics.directions import generator_for, random_signs
from gradcheck_suite.verification.numerics.evaluation_point import shifted_point

if TYPE_CHECKING:
    from gradcheck_suite.verification.first_order.probe_context import ProbeContext
    from gradcheck_suite.verification.numerics.evaluation_point import Point
    from gradcheck_suite.verification.numerics.precision import Precision

__all__ = ["Evidence", "Probe"]

_STREAM = 9001
"""Seed of the cotangents, and number of the first direction, of these probes; any number does that
no other stream uses."""
_PROBES = 8
"""How many probes a claim is tested against. A false one that fits each within ``_SHARP`` by chance
once in some twenty fits the seven that a factor leaves over once in a billion. Each probe takes
some ten evaluations: a bound on cost as well."""
_SHARP = 0.05
"""The median tolerance of the probes as a share of the deviation, up to which a claim with one
coefficient is made: a claim says something only if the error it explains stands out from the
measurement's. Chosen: see ``_PROBES`` for what it leaves to chance."""
_SHARPER = 1e-4
"""The same for a claim of two terms: there are hundreds of pairs of terms and more to try, with one
more coefficient to fit, so that each has to be less likely to fit by chance."""
_STEPS = 4
"""How many steps the shorter ladder has, one of which showed the failure: extrapolation of third
order takes four. The finer ladder has one less."""
_PARALLEL = 0.9999
"""The cosine of two terms over all probes from which on they are one: their difference would
explain what neither is about. Chosen: at this one they are 0.8 degrees apart."""


@dataclass(frozen=True, slots=True)
class Probe:
    """One measurement: numeric less analytic derivative along ``direction``.

    ``cotangent`` belongs to the output, ``gradient`` and ``direction`` to the variable; all are
    float64. ``tolerance`` is what the measurement's own error can explain.
    """

    cotangent: torch.Tensor
    direction: torch.Tensor
    gradient: torch.Tensor
    deviation: float
    tolerance: float

    def along(self, gradient: torch.Tensor) -> float:
        """Return the derivative along the direction that this gradient gives."""
        return float((gradient * self.direction).sum())

    @property
    def numeric(self) -> float:
        """The derivative by differences."""
        return self.along(self.gradient) + self.deviation


Claimed = Callable[[Probe], torch.Tensor]


class Evidence:
    """Probes of one (output, variable) pair whose gradient is wrong.

    Args:
        context: gives the function, the point and random draws.
        output: index of the output.
        variable: index of the variable.
        step: the step, relative to the variable's scale, at which the failure was measured.
        probes: how many; each takes some ten evaluations. Claims on the whole gradient need as
            many as by default.

    Attributes:
        probes: the measurements, or none if the function fails at points around.
        sharp: whether the deviations stand out enough for any claim.
    """

    def __init__(
        self,
        context: ProbeContext,
        output: int,
        variable: int,
        step: float,
        *,
        probes: int = _PROBES,
    ) -> None:
        self.context = context
        self.output = output
        self.variable = variable
        self._ladders = _short_ladders(context.precision, step)
        self._step = step
        self._scale = 0.0
        self.probes: tuple[Probe, ...] = tuple(
            probe for probe in map(self._probe, range(probes)) if probe is not None
        )
        worst = self._relative_tolerance()
        self.sharp = len(self.probes) == probes and worst <= _SHARP
        self.sharper = self.sharp and worst <= _SHARPER
        if self.probes:
            self.expect(self.value.numel())

    def expect(self, wrong: int) -> None:
        """Say how many entries are wrong, from which follows how much one of them deviates."""
        typical = statistics.median(abs(probe.deviation) for probe in self.probes)
        self._scale = typical / math.sqrt(wrong)

    @property
    def value(self) -> torch.Tensor:
        """The variable's value in float64."""
        return self.context.point.values[self.variable].double()

    @property
    def tensor(self) -> torch.Tensor:
        """The output's value in float64."""
        return self.context.point.outputs[self.output].tensor.double()

    @property
    def variable_is_complex(self) -> bool:
        """Return whether the last dimension of the value holds real and imaginary parts."""
        return self.context.subject.variables[self.variable].representation.is_complex

    @property
    def output_is_complex(self) -> bool:
        """Return whether the last dimension of the output holds real and imaginary parts."""
        return self.context.point.outputs[self.output].representation.is_complex

    @property
    def output_shape(self) -> tuple[int, ...]:
        """The shape of the output as the user sees it."""
        shape = tuple(self.tensor.shape)
        return shape[:-1] if self.output_is_complex else shape

    def holds(self, claimed: Claimed) -> bool:
        """Return whether the claimed gradient agrees with every probe."""
        return self.sharp and all(
            abs(probe.numeric - probe.along(gradient)) <= self._allowed(probe, gradient)
            for probe in self.probes
            for gradient in (claimed(probe),)
        )

    def factor(self, claimed: Claimed) -> tuple[float, float] | None:
        """Return by what the claimed gradient has to be multiplied to agree, and the error."""
        if not self.sharp:
            return None
        gradients = [claimed(probe) for probe in self.probes]
        along = [probe.along(g) for probe, g in zip(self.probes, gradients, strict=True)]
        size = sum(a * a for a in along)
        if size == 0.0:
            return None
        numeric = [probe.numeric for probe in self.probes]
        found = sum(n * a for n, a in zip(numeric, along, strict=True)) / size
        rows = zip(self.probes, gradients, numeric, along, strict=True)
        if all(abs(n - found * a) <= self._allowed(p, found * g) for p, g, n, a in rows):
            error = max(p.tolerance for p in self.probes) / max(map(abs, along))
            return found, error
        return None

    def combination(self, terms: Sequence[Sequence[float]]) -> list[float] | None:
        """Return the coefficients with which these terms make up the deviation of every probe.

        Args:
            terms: for each term its derivative along each probe's direction.
        """
        if not (self.sharper if len(terms) > 1 else self.sharp):
            return None
        matrix = torch.tensor(terms, dtype=torch.float64).T
        wanted = torch.tensor([probe.deviation for probe in self.probes], dtype=torch.float64)
        sizes = torch.linalg.vector_norm(matrix, dim=0)
        if not bool((sizes > 0.0).all() & torch.isfinite(sizes).all()):
            return None
        matrix = matrix / sizes
        if len(terms) > 1 and abs(float(matrix[:, 0] @ matrix[:, 1])) > _PARALLEL:
            return None
        found = torch.linalg.lstsq(matrix, wanted, driver="gelsd").solution
        left = (wanted - matrix @ found).abs()
        rounding = SAFETY * self.context.precision.eps * (matrix * found).abs().sum(dim=1)
        allowed = torch.tensor([p.tolerance for p in self.probes], dtype=torch.float64) + rounding
        if not bool((left <= allowed).all()):
            return None
        # Every term has to matter: what is lost in the error is not there.
        if bool(((found * matrix).abs().amax(dim=0) <= 10.0 * allowed.max()).any()):
            return None
        return [float(c) for c in found / sizes]

    def is_made_up(self, terms: Sequence[Sequence[float]], factors: Sequence[float]) -> bool:
        """Return whether these terms, times these factors, are the deviation of every probe."""
        if not (self.sharper if len(terms) > 1 else self.sharp):
            return False
        eps = SAFETY * self.context.precision.eps
        for probe, *along in zip(self.probes, *terms, strict=True):
            parts = [factor * part for factor, part in zip(factors, along, strict=True)]
            allowed = probe.tolerance + eps * sum(map(abs, parts))
            if not abs(probe.deviation - math.fsum(parts)) <= allowed:
                return False
        return True

    def elsewhere(self) -> Evidence | None:
        """Return probes at another point, where what was fitted here has to hold as well.

        Each entry is made smaller, by up to a half, which keeps it on its side of zero. None where
        the function can't be evaluated there or beside the point.
        """
        for shrinking in (True, False):
            place = self.context.moved_point()
            if shrinking:
                offsets = [
                    self._shrinking(index) for index in range(len(self.context.point.values))
                ]
                place = shifted_point(self.context.subject, self.context.point, offsets)
            if place is None:
                continue
            found = Evidence(self.context.at(place), self.output, self.variable, self._step)
            if found.sharp:
                return found
        return None

    def _shrinking(self, variable: int) -> torch.Tensor:
        """Return what takes up to a half away from each entry of a variable that may move."""
        value = self.context.point.values[variable]
        share = torch.rand(value.shape, generator=generator_for(_STREAM, variable)).to(value)
        fixed = self.context.subject.variables[variable].fixed
        offset = -0.5 * share * value
        return offset if fixed is None else offset.where(~fixed, 0.0)

    def gradient_for(self, cotangent: torch.Tensor) -> torch.Tensor:
        """Return the analytic gradient for another cotangent of the output."""
        context = self.context
        cotangents = [torch.zeros_like(known.tensor) for known in context.point.outputs]
        # Contiguous: how backward takes other layouts is another question.
        dtype = context.point.outputs[self.output].tensor.dtype
        cotangents[self.output] = cotangent.to(dtype).contiguous()
        rows = differentiate(context.subject, context.point, cotangents).rows
        part = rows[self.output][self.variable]
        return torch.zeros_like(self.value) if part is None else part.double()

    def deviation(
        self,
        direction: torch.Tensor,
        cotangent: torch.Tensor | None = None,
        *,
        point: Point | None = None,
    ) -> Measurement:
        """Measure along a direction, by default with the first probe's cotangent."""
        context = self.context
        place = context.point if point is None else point
        given = self.probes[0].cotangent if cotangent is None else cotangent
        cotangents = [torch.zeros_like(known.tensor) for known in place.outputs]
        cotangents[self.output] = given.to(place.outputs[self.output].tensor.dtype)
        along = {self.variable: direction.to(place.values[self.variable].dtype)}
        gradients = differentiate(context.subject, place, cotangents)
        best: Measurement | None = None
        for precision in self._ladders:
            result = measure(
                context.subject,
                place,
                cotangents,
                gradients,
                along,
                precision=precision,
                thorough=True,
            )[self.output]
            if best is None or result.tolerance < best.tolerance:
                best = result
            if best.tolerance <= _SHARP * max(abs(best.deviation), self._scale):
                break
        assert best is not None
        return best

    def is_right(self, result: Measurement) -> bool:
        """Return whether a measurement agrees and would have shown one wrong entry among those."""
        return result.z <= 1.0 and result.tolerance <= _SHARP * self._scale

    def _probe(self, number: int) -> Probe | None:
        context = self.context
        tensor = context.point.outputs[self.output].tensor
        cotangent = random_signs(tensor, generator_for(_STREAM, number, self.output))
        finite = context.point.finite[self.output]
        if finite is not None:
            cotangent = cotangent.where(finite, 0.0)
        direction = context.direction(_STREAM + number, self.variable)
        gradient = self.gradient_for(cotangent)
        if not bool(torch.isfinite(gradient).all()):
            return None
        result = self.deviation(direction, cotangent)
        if not math.isfinite(result.tolerance):
            return None
        return Probe(
            cotangent.double(), direction.double(), gradient, result.deviation, result.tolerance
        )

    def _relative_tolerance(self) -> float:
        if not self.probes:
            return 1.0
        return statistics.median(
            probe.tolerance / abs(probe.deviation) if probe.deviation else 1.0
            for probe in self.probes
        )

    def _allowed(self, probe: Probe, gradient: torch.Tensor) -> float:
        rounding = float(torch.linalg.vector_norm(gradient * probe.direction))
        return probe.tolerance + SAFETY * self.context.precision.eps * rounding


def _short_ladders(precision: Precision, step: float) -> tuple[Precision, ...]:
    """Return a ladder that ends at the step that showed the failure best, and a finer one.

    The second one is for entries that have a kink within the steps of the first.
    """
    ratio = precision.steps[0] / precision.steps[1]
    known = precision.steps[len(precision.steps) // 2] if math.isnan(step) else step
    coarse = tuple(known * ratio**power for power in reversed(range(_STEPS)))
    fine = tuple(known / ratio**power for power in range(_STEPS - 1))
    return tuple(replace(precision, steps=steps, first=len(steps)) for steps in (coarse, fine))
