"""Return whether a function has slopes on both sides of a point where its gradient is NaN or Inf.

The length of a vector has a kink at zero: seen from either side its slope is one, and any number
between is as good a gradient as another. NaN, as ``x.square().sum().sqrt()`` gives there, is none.
The square root of the size of ``x`` is steeper the closer one looks, and NaN or Inf all that can
be said.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from gradcheck_suite.verification.first_order.piecewise_constant import change_along

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gradcheck_suite.verification.first_order.probe_context import ProbeContext

__all__ = ["has_one_sided_derivatives"]

_STEPS = (2.0**-8, 2.0**-10, 2.0**-12)
"""How far to move in float32, in units of the input's scale: what rounding (``2**-23``) adds to a
slope is below 1e-3."""
_STEPS_IN_DOUBLE = (2.0**-13, 2.0**-17, 2.0**-21)
"""The same in float64, where rounding adds less than 1e-9."""
_SAME = 1.0 / 64.0
"""By how much slopes may differ from each other, as a share. ``|x| ** p`` differs by more for p
below 0.994 along steps that span a factor of 16, and below 0.997 in float64, where they span
256."""


def has_one_sided_derivatives(context: ProbeContext, output: int, variable: int) -> bool:
    """Return whether slopes stay the same as steps shrink, where the broken entries move.

    Args:
        context: gives the function, the point, directions and the machine epsilon.
        output: the index of the output.
        variable: the index of the variable whose gradient holds NaN or Inf.
    """
    gradient = context.gradients.rows[output][variable]
    if gradient is None or gradient.layout is not torch.strided or not context.deterministic:
        return False
    along = context.direction(0, variable).where(~torch.isfinite(gradient), 0.0)
    steps = _STEPS_IN_DOUBLE if context.precision.is_double else _STEPS
    return all(
        _settles([(step, change_along(context, output, variable, step, along)) for step in taken])
        for taken in (steps, [-step for step in steps])
    )


def _settles(changes: Sequence[tuple[float, torch.Tensor | None]]) -> bool:
    slopes = [change / step for step, change in changes if change is not None]
    if len(slopes) < len(changes):
        return False
    last = slopes[-1]
    size = float(torch.linalg.vector_norm(last))
    if not math.isfinite(size):
        return False
    return all(
        float(torch.linalg.vector_norm(slope - last)) <= _SAME * size for slope in slopes[:-1]
    )
