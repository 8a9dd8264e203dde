"""Ask of a wrong gradient in float32 whether it is as wrong along much smaller steps.

What a wrong gradient leaves unexplained is in proportion to the step. Steps that stride over many
kinks (the places that numbers change in a long sort), over jumps or past a pole see a slope that
the function does not have, however well they agree with each other. In float32 no single probe sees
much at steps that small; the same few probes at both steps, taken together, see whether the
deviation is there.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from gradcheck_suite.verification.first_order.pooled_probes import ProbePool

if TYPE_CHECKING:
    from gradcheck_suite.verification.first_order.probe_context import ProbeContext
    from gradcheck_suite.verification.numerics.evaluation_point import Point

__all__ = ["vanishes_at_smaller_steps"]

_STEPS = (2.0**-15, 2.0**-17, 2.0**-19)
"""Smaller half widths, in units of the input's scale, largest first: at the last a float32 input
still moves by 16 of its roundings."""
_PROBES, _PROBES_AGAIN = 8, 32
"""How many probes compare a smaller step with the usual one, and how many again where these say
that the deviation vanishes. A bound on cost; the second look makes up for errors that so few probes
give too small by chance."""
_FIRST, _FIRST_AGAIN = 7000, 7100
"""Numbers of the first probes of either look; any do from which on no other probe is numbered."""
_LEAST, _MOST = 0.7, 1.5
"""Bounds of the deviation at a small step as a share of that at the usual one: one for an error.
Kinks, curvature and poles leave a fourth or less at a fourth of the step."""
_CERTAIN = 3.0
"""By how many standard errors it has to be beyond these bounds: by chance once in a thousand, and
both looks have to see it."""
_CLOSER = 4.0
"""By what factor a step has to be smaller than the usual one: one at which kinks leave a fourth."""


def vanishes_at_smaller_steps(
    context: ProbeContext, point: Point, variable: int, output: int, step: float
) -> bool:
    """Return whether the deviation seen at ``step`` is certainly not there at smaller ones.

    Args:
        context: draws directions and cotangents.
        point: where the gradient looked wrong.
        variable: with respect to which.
        output: of which output.
        step: at which half width.
    """
    if not math.isfinite(step):
        return False
    return any(
        _vanishes(context, point, variable, output, step, in_proportion=in_proportion)
        for in_proportion in (False, True)
    )


def _vanishes(
    context: ProbeContext,
    point: Point,
    variable: int,
    output: int,
    step: float,
    *,
    in_proportion: bool,
) -> bool:
    """Return whether it vanishes along steps of one size for all entries, or in proportion."""

    def deviations(step: float, first: int, count: int) -> torch.Tensor | None:
        probes = ProbePool(context, point, [variable], (step,), in_proportion=in_proportion)
        if not all(probes.take(first + probe) for probe in range(count)):
            return None
        return probes.regression(output).deviations(0) / step

    def contradicts(smaller: float, first: int, count: int) -> bool | None:
        usual, closer = (deviations(one, first, count) for one in (step, smaller))
        if usual is None or closer is None:
            return None
        share, error = _share(usual, closer)
        return share + _CERTAIN * error < _LEAST or share - _CERTAIN * error > _MOST

    for smaller in _STEPS:
        if smaller * _CLOSER > step:
            continue
        found = contradicts(smaller, _FIRST, _PROBES)
        if found is None:
            return False
        # The error of so few probes is too small by chance now and then.
        if found and contradicts(smaller, _FIRST_AGAIN, _PROBES_AGAIN):
            return True
    return False


def _share(usual: torch.Tensor, closer: torch.Tensor) -> tuple[float, float]:
    """Fit the one by the other through the origin; return the slope and its standard error."""
    square = float(usual.square().sum())
    if square == 0.0:
        return 1.0, math.inf
    share = float(usual @ closer) / square
    left = (closer - share * usual) * usual
    return share, float(torch.linalg.vector_norm(left)) / square
