"""Is the function itself accurate at the other values, where an iteration computes it?

A solver that settles at the given point may be far from settled at others: weights a few times
larger, and a fixed point is none. Its implicit gradient is that of the limit, which the function
then has not come near to, so that neither speaks against the other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gradcheck_suite.verification.numerics.derivative import differentiate, draw_cotangents
from gradcheck_suite.verification.numerics.directions import generator_for
from gradcheck_suite.verification.numerics.evaluation_point import Point, given_point
from gradcheck_suite.verification.target.iteration import Computation, last_rounds

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from gradcheck_suite.findings import Finding
    from gradcheck_suite.verification.stage import CheckState
    from gradcheck_suite.verification.target.pure_function import Output, PureFunction

__all__ = ["Settling", "settling"]

_STREAM = 79
"""Stream of the cotangents; any number does that no other stream uses."""
_TIMES = 1000.0
"""How many times what its last round changes an iteration may be off, and how many times better one
that settles has to be at the given point. An error that shrinks by rho a round is 1 / (1 - rho)
times its last change, 20 for rho of 0.95, and the slope of the iterate is off by as many times more
as there were rounds, 50 say. Measured on eleven solvers: 1e-16 at the given point, 1e-7 and more
where gradients were wrongly called wrong, by a thirtieth to three times as much."""


@dataclass(frozen=True, slots=True)
class Settling:
    """What iterations that settle at the given point do at other values.

    Attributes:
        iterates: whether there are any.
        values: by what share of its size the last round of one still changes an output there.
        gradients: the same of a gradient.
    """

    iterates: bool
    values: float
    gradients: float

    def unsettled(self, finding: Finding) -> bool:
        """Return whether the function may be as far from its limit as a gradient is off."""
        apart = finding.evidence.get("relative_error")
        return isinstance(apart, float) and apart <= _TIMES * self.values

    def held_to(self, finding: Finding) -> Finding:
        """Lower the severity of a finding of a function that iterates, and tell why."""
        if not self.iterates:
            return finding
        where = "backward" if self.gradients > _TIMES * self.values else "the function"
        doubt = f"{where} iterates, and need not come to the solution for these values"
        known = finding.evidence.get("lowered", ())
        assert isinstance(known, (list, tuple))
        return replace(
            finding,
            severity=finding.severity.lowered(1),
            evidence={**finding.evidence, "lowered": (*known, doubt)},
        )


def settling(state: CheckState, subject: PureFunction, outputs: Sequence[Output]) -> Settling:
    """Look at the last rounds of iterations, at the given point and at that of a varied subject."""
    given, count = state.context.point, len(outputs)
    before = last_rounds(_gradients(state.subject, given, state.context.cotangents(given, 0)))
    settled = {one: max(at) for one, at in before.items() if max(at) * _TIMES <= 1.0}
    values = gradients = 0.0
    if settled:
        point = given_point(subject, outputs, eps=state.context.precision.eps)
        cotangents = draw_cotangents(point, generator_for(state.options.seed, _STREAM))
        now = last_rounds(_gradients(subject, point, cotangents), known=settled)
        for iteration, at_first in settled.items():
            # One that is over after a single round has not begun to settle.
            here = now.get(iteration, [math.inf] * (count + 1))
            if max(here) >= _TIMES * at_first:
                values = max(values, *here[:count])
                gradients = max(gradients, *here[count:])
    return Settling(bool(settled), values, gradients)


def _gradients(
    subject: PureFunction, point: Point, cotangents: Sequence[torch.Tensor]
) -> Computation:
    """Return what computes the outputs and then the gradients at a point."""

    def compute() -> Sequence[torch.Tensor | None]:
        found = differentiate(subject, point, cotangents)
        return [*found.outputs, *(part for row in found.rows for part in row)]

    return compute
