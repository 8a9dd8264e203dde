"""Measure one directional derivative: what differences say against what autograd says.

A probe is a random cotangent for every output and a random direction for some of the variables.
What is extrapolated is the deviation ``<g, f(x + hv) - f(x - hv)> - <grad, (x + hv) - (x - hv)>``,
with the displacement that the floating-point inputs really made. The rounding of ``x + hv`` so
drops out, which in float32 is most of the error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch

from gradcheck_suite.errors import UsageError
from gradcheck_suite.verification.numerics.central_differences import (
    UNKNOWN,
    Estimate,
    Level,
    estimate_limit,
)
from gradcheck_suite.verification.numerics.directions import random_signs
from gradcheck_suite.verification.numerics.evaluation_point import Point, evaluate, match_outputs
from gradcheck_suite.verification.target.pure_function import PureFunction

if TYPE_CHECKING:
    from gradcheck_suite.verification.numerics.precision import Precision

__all__ = ["Gradients", "Measurement", "differentiate", "draw_cotangents", "measure"]

SAFETY = 4.0
"""How many times the measured error the deviation of a right gradient may be: errors by
disagreement are right in order of magnitude. Chosen; ``decision.CLEARLY`` tells what was measured
with it."""

_FLAT = "does not change under small steps (it rounds or quantizes), yet its gradient is not zero"

_DECISIVE = 1e4
"""A deviation of so many tolerances, with ``_FINER`` steps more than the first ones, will not be
explained by still smaller steps. A bound on cost: nearly all wrong gradients in float64 span as
many and more (``decision.CLEARLY``)."""
_FINER = 2
"""How many steps are taken after the first ones before that is believed: they make two more
estimates from finer steps."""

Direction = dict[int, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Gradients:
    """Vector-Jacobian products for one set of cotangents.

    Attributes:
        rows: for each output the gradient with respect to each variable; None where autograd
            gives none.
        attached: for each output whether it requires grad.
        written: for each output whether backward wrote into its cotangent.
        outputs: the outputs' values in the call that was differentiated.
    """

    rows: tuple[tuple[torch.Tensor | None, ...], ...]
    attached: tuple[bool, ...]
    written: tuple[bool, ...]
    outputs: tuple[torch.Tensor, ...]


@dataclass(frozen=True, slots=True)
class Measurement:
    """What one probe says of one output and a group of variables.

    ``analytic`` is the derivative by autograd, ``estimate`` holds the deviation of the numeric one
    from it. ``contributions`` is the size (2-norm) that each variable's part of ``analytic`` has,
    element by element, which random signs leave of it. ``magnitude`` is the size of the output.
    ``unchanged`` says that no step changed it; ``missing`` and ``non_finite`` that the gradients
    are None or hold NaN or Inf; ``masked`` that non-finite values of the output were left out.
    ``analytic_noise`` is what rounding within backward may do to ``analytic``. ``reach`` is the
    largest step that was taken and ``scale`` the size of what was moved.
    """

    output: int
    group: tuple[int, ...]
    analytic: float
    contributions: dict[int, float]
    estimate: Estimate
    magnitude: float
    eps: float
    unchanged: bool
    missing: bool
    non_finite: bool
    masked: bool
    analytic_noise: float = 0.0
    trouble: str | None = None
    reach: float = 0.0
    scale: float = 1.0

    @property
    def lost_in_rounding(self) -> bool:
        """Return whether the change that the gradient foretells is lost in roundings on the way.

        An output that is zero or stays the same, bit for bit, says nothing against a derivative
        so small:
        ``0.5 * (1 + erf(x / sqrt(2)))`` is exactly zero where its derivative is 1e-15.
        """
        foretold = abs(self.analytic) * self.reach
        silent = self.unchanged or self.magnitude == 0.0
        return silent and foretold < SAFETY * self.eps * max(self.scale, 1.0)

    @property
    def is_flat(self) -> bool:
        """Return whether the function stayed the same along steps that should change it."""
        return self.trouble == _FLAT

    def of_steps(self) -> Measurement:
        """Return what this says of a function that small steps leave as it is: a slope of zero."""
        still = Estimate(
            value=-self.analytic, truncation=0.0, rounding=0.0, kink=0.0, step=self.reach
        )
        return replace(self, estimate=still, unchanged=True, trouble=None)

    @property
    def deviation(self) -> float:
        """Numeric less analytic derivative."""
        return self.estimate.value

    @property
    def numeric(self) -> float:
        """The derivative by differences."""
        return self.analytic + self.estimate.value

    @property
    def contribution(self) -> float:
        """The size of the analytic derivative, all variables of the group together."""
        return math.sqrt(sum(part * part for part in self.contributions.values()))

    @property
    def tolerance(self) -> float:
        """The deviation that the measurement itself may cause."""
        if self.unchanged and self.analytic == 0.0:
            return 0.0
        rounding = SAFETY * (self.eps * self.contribution + self.analytic_noise)
        return SAFETY * self.estimate.error + rounding

    @property
    def size(self) -> float:
        """The size of the derivative, by whichever of the two is larger."""
        return max(abs(self.numeric), self.contribution)

    @property
    def relative_deviation(self) -> float:
        """Deviation in units of the derivative's size."""
        return abs(self.deviation) / self.size if self.size > 0.0 else 0.0

    @property
    def relative_tolerance(self) -> float:
        """Tolerance in units of the derivative's size, or as it is where that is zero."""
        return self.tolerance / self.size if self.size > 0.0 else self.tolerance

    @property
    def z(self) -> float:
        """Deviation in units of the tolerance."""
        if self.deviation == 0.0:
            return 0.0
        return abs(self.deviation) / self.tolerance if self.tolerance > 0.0 else math.inf


def draw_cotangents(point: Point, generator: torch.Generator) -> tuple[torch.Tensor, ...]:
    """Draw a cotangent for each output, zero where the output is not finite."""
    drawn = []
    for output, finite in zip(point.outputs, point.finite, strict=True):
        cotangent = random_signs(output.tensor, generator)
        drawn.append(cotangent if finite is None else cotangent.where(finite, 0.0))
    return tuple(drawn)


def differentiate(
    subject: PureFunction, point: Point, cotangents: Sequence[torch.Tensor], *, scale: float = 1.0
) -> Gradients:
    """Compute the gradients of ``<scale * cotangent, output>`` for each output by itself.

    Raises:
        UsageError: the function writes into one of its variables.
    """
    with torch.enable_grad():
        leaves = subject.leaves(point.values)
        tensors = match_outputs(subject, point.outputs, subject(leaves))
    _require_unwritten(subject, leaves, point.values)
    rows: list[tuple[torch.Tensor | None, ...]] = []
    written = []
    for index, tensor in enumerate(tensors):
        if not tensor.requires_grad:
            rows.append((None,) * len(leaves))
            written.append(False)
            continue
        given = cotangents[index] if scale == 1.0 else scale * cotangents[index]
        given = given.to(tensor.dtype)
        handed = given.clone()
        later = any(other.requires_grad for other in tensors[index + 1 :])
        row: Sequence[torch.Tensor | None] = torch.autograd.grad(
            tensor, leaves, handed, retain_graph=later, allow_unused=True
        )
        rows.append(
            tuple(
                None if part is None else _at_moved_entries(part.detach(), variable.fixed)
                for part, variable in zip(row, subject.variables, strict=True)
            )
        )
        written.append(not torch.equal(given, handed))
    return Gradients(
        rows=tuple(rows),
        attached=tuple(tensor.requires_grad for tensor in tensors),
        written=tuple(written),
        outputs=tuple(tensor.detach() for tensor in tensors),
    )


def _require_unwritten(
    subject: PureFunction, leaves: Sequence[torch.Tensor], values: Sequence[torch.Tensor]
) -> None:
    for variable, leaf, value in zip(subject.variables, leaves, values, strict=True):
        known = leaf.detach() == value
        if variable.fixed is not None:
            known |= variable.fixed
        if not bool(known.all()):
            raise UsageError(
                f"{subject.title} overwrites its {variable.kind} `{variable.name}` in place, so "
                "its output belongs to other values than the given ones; give it a copy "
                f"(`{variable.name}.clone()`) or write to a new tensor"
            )


@dataclass(frozen=True, slots=True)
class _AnalyticSide:
    """What autograd says of one output along the direction."""

    value: float
    contributions: dict[int, float]
    missing: bool
    non_finite: bool


@dataclass(slots=True)
class _StepSequence:
    """The central differences of one probe, step by step."""

    subject: PureFunction
    point: Point
    cotangents: Sequence[torch.Tensor]
    direction: Direction
    gradients: Gradients
    eps: float
    levels: list[list[Level]] = field(default_factory=list)
    trouble: str | None = None
    magnitudes: list[float] = field(default_factory=list)
    noises: list[float] = field(default_factory=list)
    _centres: list[torch.Tensor] = field(default_factory=list)
    _cotangents: list[torch.Tensor] = field(default_factory=list)
    _bends: list[tuple[float, torch.Tensor] | None] = field(default_factory=list)
    rows: list[list[tuple[torch.Tensor, int]]] = field(default_factory=list)
    sides: list[_AnalyticSide] = field(default_factory=list)
    scale: float = 1.0

    def __post_init__(self) -> None:
        self.scale = max(float(along.abs().max()) for along in self.direction.values())
        for index, (output, noise) in enumerate(
            zip(self.point.outputs, self.point.noise, strict=True)
        ):
            cotangent = self.cotangents[index].double()
            centre = _masked(output.tensor.double(), self.point.finite[index])
            self._centres.append(centre)
            self._cotangents.append(cotangent)
            self.magnitudes.append(float(torch.linalg.vector_norm(cotangent * centre)))
            self.noises.append(
                0.0 if noise is None else float(torch.linalg.vector_norm(cotangent * noise))
            )
            self._bends.append(None)
            self.levels.append([])
            self._add_row(index)

    def _add_row(self, index: int) -> None:
        row = self.gradients.rows[index]
        parts, contributions, analytic = [], dict.fromkeys(self.direction, 0.0), 0.0
        for variable, along in self.direction.items():
            part = row[variable]
            if part is None or not _is_finite(part):
                continue
            part = part.double()
            product = part * along.double()
            contributions[variable] = float(torch.linalg.vector_norm(product))
            analytic += float(product.sum())
            parts.append((part, variable))
        self.rows.append(parts)
        given = [row[variable] for variable in self.direction if row[variable] is not None]
        self.sides.append(
            _AnalyticSide(
                value=analytic,
                contributions=contributions,
                missing=not given,
                non_finite=len(parts) < len(given),
            )
        )

    def add_step(self, step: float) -> None:
        """Add one central difference of this half width, where the function allows it."""
        ahead, behind = self._moved(step), self._moved(-step)
        expected = self._expected(ahead, behind)
        above = self._values(ahead)
        below = None if above is None else self._values(behind)
        if above is None or below is None:
            return
        for index, (high, low) in enumerate(zip(above, below, strict=True)):
            high_value = _masked(high, self.point.finite[index])
            low_value = _masked(low, self.point.finite[index])
            if not (_is_finite(high_value) and _is_finite(low_value)):
                self.trouble = "is not finite at points around the given one"
                self._bends[index] = None
                continue
            self.levels[index].append(
                self._level(index, step, high_value, low_value, expected[index])
            )

    def _level(
        self, index: int, step: float, high: torch.Tensor, low: torch.Tensor, expected: float
    ) -> Level:
        cotangent = self._cotangents[index]
        centre = self._centres[index]
        unchanged = torch.equal(high, centre) and torch.equal(low, centre)
        slope = (inner_product(cotangent, high - low) - expected) / (2.0 * step)
        tensor = self.point.outputs[index].tensor
        # Results below the smallest normal number may be flushed to zero.
        underflow = math.sqrt(tensor.numel()) * torch.finfo(tensor.dtype).tiny
        rounding = self.eps * self.magnitudes[index] + 2.0 * self.noises[index] + underflow
        rounding /= step
        # For a smooth function the second difference over the step vanishes with the step; the
        # line through two steps leaves at zero what a kink contributes.
        # The values are ours alone and needed no longer: large tensors are dear to allocate.
        bend = high.add_(low).sub_(centre, alpha=2.0).mul_(cotangent).div_(step)
        previous = self._bends[index]
        self._bends[index] = (step, bend)
        kink = math.inf
        if previous is not None:
            ratio = previous[0] / step
            left = torch.linalg.vector_norm(previous[1].sub_(bend, alpha=ratio))
            kink = max(0.0, float(left) / (ratio - 1.0) - 4.0 * rounding)
        return Level(step=step, slope=slope, rounding=rounding, kink=kink, unchanged=unchanged)

    def _expected(
        self, ahead: Sequence[torch.Tensor], behind: Sequence[torch.Tensor]
    ) -> list[float]:
        """Return for each output what the displacement changes according to its gradients."""
        expected = [0.0] * len(self.rows)
        for variable in self.direction:
            made = ahead[variable].double() - behind[variable].double()
            fixed = self.subject.variables[variable].fixed
            if fixed is not None:
                made = made.where(~fixed, 0.0)
            for index, row in enumerate(self.rows):
                expected[index] += sum(
                    inner_product(part, made) for part, of in row if of == variable
                )
        return expected

    def _moved(self, step: float) -> list[torch.Tensor]:
        moved = []
        for variable, value in enumerate(self.point.values):
            along = self.direction.get(variable)
            moved.append(value if along is None else torch.add(value, along, alpha=step))
        return moved

    def _values(self, values: Sequence[torch.Tensor]) -> list[torch.Tensor] | None:
        """Evaluate, or note why not; the user's exceptions count only at the given point."""
        try:
            produced = evaluate(
                self.subject, values, recorded=self.point.recorded, spare=self.direction
            )
        except Exception as error:  # noqa: BLE001 - whatever the user's function raises
            self.trouble = f"raises {type(error).__name__} at points around the given one"
            return None
        tensors = {output.name: output.tensor for output in produced}
        found = []
        for output in self.point.outputs:
            tensor = tensors.get(output.name)
            if tensor is None or tensor.shape != output.tensor.shape:
                self.trouble = "changes the shape of its outputs at points around the given one"
                return None
            found.append(tensor.double())
        return found


def measure(
    subject: PureFunction,
    point: Point,
    cotangents: Sequence[torch.Tensor],
    gradients: Gradients,
    direction: Direction,
    *,
    precision: Precision,
    thorough: bool,
) -> list[Measurement]:
    """Measure the derivative of every output along one direction.

    Args:
        subject: the function.
        point: where.
        cotangents: one for each output.
        gradients: what autograd gives for these cotangents at this point.
        direction: for each variable of the group how it moves for one unit of step.
        precision: the ladder's steps and what is asked of the result.
        thorough: whether disagreement is followed down to the smallest step, or left for others.
    """
    sequence = _StepSequence(subject, point, cotangents, direction, gradients, precision.eps)
    results: list[Measurement] = []
    for count, step in enumerate(precision.steps, start=1):
        sequence.add_step(step)
        if count < precision.first:
            continue
        results = [_measurement(sequence, index) for index in range(len(point.outputs))]
        open_questions = [result for result in results if not _is_settled(result, precision)]
        if not open_questions:
            break
        if count >= precision.first + _FINER and all(
            math.isfinite(result.z) and result.z >= _DECISIVE for result in open_questions
        ):
            break
        if not thorough and count > precision.first:
            known = [result for result in open_questions if math.isfinite(result.z)]
            if any(result.z > 1.0 and math.isfinite(result.tolerance) for result in known):
                break
    return results


def _is_settled(result: Measurement, precision: Precision) -> bool:
    scale = max(result.contribution, result.magnitude * precision.zero)
    return result.z <= 1.0 and result.tolerance <= precision.target * scale


def _measurement(sequence: _StepSequence, index: int) -> Measurement:
    levels = sequence.levels[index]
    side = sequence.sides[index]
    trouble = sequence.trouble
    if trouble is None and any(level.unchanged and level.slope != 0.0 for level in levels):
        trouble = _FLAT
    return Measurement(
        output=index,
        group=tuple(sequence.direction),
        analytic=side.value,
        contributions=side.contributions,
        estimate=estimate_limit(levels) if levels else UNKNOWN,
        magnitude=sequence.magnitudes[index],
        eps=sequence.eps,
        unchanged=bool(levels) and all(level.unchanged for level in levels),
        missing=side.missing,
        non_finite=side.non_finite,
        masked=sequence.point.finite[index] is not None,
        trouble=trouble,
        reach=max((level.step for level in levels), default=0.0),
        scale=sequence.scale,
    )


def inner_product(one: torch.Tensor, two: torch.Tensor) -> float:
    """Return the sum of the products of two float64 tensors' entries."""
    return float(torch.dot(one.reshape(-1), two.reshape(-1)))


def _masked(values: torch.Tensor, finite: torch.Tensor | None) -> torch.Tensor:
    return values if finite is None else values.where(finite, 0.0)


def _at_moved_entries(gradient: torch.Tensor, fixed: torch.Tensor | None) -> torch.Tensor:
    """Make a gradient dense, and zero where the variable is never moved."""
    if gradient.layout is not torch.strided:
        gradient = gradient.to_dense()
    return gradient if fixed is None else gradient.where(~fixed, 0.0)


def _is_finite(values: torch.Tensor) -> bool:
    # NaN and Inf survive a sum; only a sum that overflows needs the look at every entry.
    return math.isfinite(float(values.sum())) or bool(torch.isfinite(values).all())
