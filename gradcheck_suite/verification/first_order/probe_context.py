"""What probes of a function may ask: the point, its gradients, and random draws to move it by."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

from gradcheck_suite.verification.first_order.backward_contract import check_contracts
from gradcheck_suite.verification.numerics.derivative import (
    Gradients,
    differentiate,
    draw_cotangents,
)
from gradcheck_suite.verification.numerics.directions import generator_for, random_signs, scales_of
from gradcheck_suite.verification.numerics.evaluation_point import Point, given_point, shifted_point
from gradcheck_suite.verification.progress import Deadline

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from gradcheck_suite.verification.numerics.decision import Pair
    from gradcheck_suite.verification.numerics.precision import Precision
    from gradcheck_suite.verification.target.pure_function import Output, PureFunction

__all__ = ["ProbeContext"]

_COTANGENTS, _DIRECTIONS, _MOVE = range(3)


class ProbeContext:
    """A function at the point where its gradients are checked, and what all probes of it share.

    Attributes:
        subject: the function.
        precision: what can be asked of its gradients.
        seed: of the random draws.
        deadline: when no further measurement is begun.
        point: where the user asked for gradients.
        gradients: the analytic gradients of the first probe.
        breaches: what backward owes and does not keep.
    """

    def __init__(
        self,
        subject: PureFunction,
        outputs: Sequence[Output],
        *,
        precision: Precision,
        seed: int,
        deadline: Deadline = Deadline(),  # noqa: B008 - it is frozen
    ) -> None:
        self.subject = subject
        self.precision = precision
        self.seed = seed
        self.deadline = deadline
        self._scales = scales_of([variable.value for variable in subject.variables])
        self._gradients: dict[tuple[bool, int], Gradients] = {}
        self._moved: Point | None = None
        self.point = given_point(subject, outputs, eps=precision.eps)
        self.gradients = self.differentiated(self.point, 0)
        self.breaches = check_contracts(
            subject,
            self.point,
            self.cotangents(self.point, 0),
            self.gradients,
            precision=precision,
        )

    @property
    def deterministic(self) -> bool:
        """Return whether two calls at the same point with the same random draws were equal."""
        return all(noise is None for noise in self.point.noise)

    @property
    def variables(self) -> list[int]:
        """The variables that have elements, by index."""
        return [
            index
            for index, variable in enumerate(self.subject.variables)
            if variable.value.numel() > 0
        ]

    @property
    def pairs(self) -> list[Pair]:
        """Every (output, variable) pair in which both have elements."""
        return [
            (output, variable)
            for output in range(len(self.point.outputs))
            for variable in self.variables
        ]

    def names(self, pair: Pair) -> tuple[str, str]:
        """Return what the user calls an output and a variable."""
        output, variable = pair
        return self.point.outputs[output].name, self.subject.variables[variable].name

    def cotangents(self, point: Point, probe: int) -> tuple[torch.Tensor, ...]:
        """Return the cotangents of a probe, the same on every call."""
        return draw_cotangents(point, generator_for(self.seed, _COTANGENTS, probe))

    def direction(self, probe: int, variable: int) -> torch.Tensor:
        """Return how a variable moves per unit of step in a probe, the same on every call."""
        generator = generator_for(self.seed, _DIRECTIONS, probe, variable)
        drawn = random_signs(self.point.values[variable], generator)
        fixed = self.subject.variables[variable].fixed
        if fixed is not None:
            drawn = drawn.where(~fixed, 0.0)
        return drawn * self._scales[variable]

    def in_proportion(self, variable: int, direction: torch.Tensor) -> torch.Tensor:
        """Scale a direction by the size of each entry, in place of one size for all."""
        size = self.point.values[variable].abs()
        return direction / self._scales[variable] * size.where(size.isfinite(), 0.0)

    def differentiated(self, point: Point, probe: int) -> Gradients:
        """Return the gradients for the cotangents of a probe, computed once."""
        key = (point.moved, probe)
        if key not in self._gradients:
            cotangents = self.cotangents(point, probe)
            self._gradients[key] = differentiate(self.subject, point, cotangents)
        return self._gradients[key]

    def at(self, point: Point) -> ProbeContext:
        """Return the same of another point, with the draws of this one."""
        other = copy.copy(self)
        other.point, other._gradients, other._moved = point, {}, None  # noqa: SLF001 - a copy
        other.gradients = other.differentiated(point, 0)
        return other

    def moved_point(self) -> Point | None:
        """Return a point beside the given one; None where the function can't be evaluated."""
        if self._moved is None:
            offsets = [
                self.precision.move
                * scale
                * random_signs(value, generator_for(self.seed, _MOVE, index))
                for index, (value, scale) in enumerate(
                    zip(self.point.values, self._scales, strict=True)
                )
            ]
            self._moved = shifted_point(self.subject, self.point, offsets)
        return self._moved
