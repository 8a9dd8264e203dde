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

from gradcheck_suite.verification.looks import Probes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gradcheck_suite.verification.points import Point
    from gradcheck_suite.verification.survey import Survey

__all__ = ["is_contradicted_closer"]

_STEPS = (2.0**-15, 2.0**-17, 2.0**-19)
_PROBES = 8
_FIRST = 7000
# The deviation at a small step as a share of that at the usual one: one for an error. Kinks,
# curvature and poles leave a fourth or less at a fourth of the step.
_LEAST, _MOST = 0.7, 1.5
_CERTAIN = 3.0
_CLOSER = 4.0


def is_contradicted_closer(
    survey: Survey, point: Point, variable: int, output: int, step: float
) -> bool:
    """Say whether the deviation that was seen at ``step`` is certainly not there at smaller ones.

    Args:
        survey: draws directions and cotangents.
        point: where the gradient looked wrong.
        variable: with respect to which.
        output: of which output.
        step: at which half width.
    """
    if not math.isfinite(step):
        return False
    return any(
        _is_contradicted(survey, point, variable, output, step, in_proportion=in_proportion)
        for in_proportion in (False, True)
    )


def _is_contradicted(
    survey: Survey, point: Point, variable: int, output: int, step: float, *, in_proportion: bool
) -> bool:
    """Compare the steps, of one size for all entries or in proportion to each."""

    def deviations(step: float) -> torch.Tensor | None:
        probes = Probes(survey, point, [variable], (step,), in_proportion=in_proportion)
        if not all(probes.take(_FIRST + probe) for probe in range(_PROBES)):
            return None
        rows: Sequence[Sequence[float]] = probes.pools[output].deviations
        return torch.tensor([row[0] for row in rows], dtype=torch.float64) / step

    usual = deviations(step)
    if usual is None:
        return False
    for smaller in _STEPS:
        if smaller * _CLOSER > step:
            continue
        closer = deviations(smaller)
        if closer is None:
            return False
        share, error = _share(usual, closer)
        if share + _CERTAIN * error < _LEAST or share - _CERTAIN * error > _MOST:
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
