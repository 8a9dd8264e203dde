"""Tell a function that is made of steps: it rounds, so that only a gradient of zero is right.

A straight-through estimator gives another on purpose. Seen from afar the steps have a slope. Seen
from close by an output stays exactly as it is, although that slope would change it by several of
its own roundings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from gradcheck_suite.verification.numerics.evaluation_point import evaluate, match_outputs

if TYPE_CHECKING:
    from gradcheck_suite.verification.first_order.probe_context import ProbeContext

__all__ = ["change_along", "has_any_effect", "is_piecewise_constant", "is_quantized"]

_CLOSE = (2.0**-19, 2.0**-16, 2.0**-13)
"""How far to move in float32, in units of the input's scale. Narrower steps than these are the
rounding of larger numbers on the way, as in ``(x + 100) - 100``, which float32 can't tell from
steps by design."""
_CLOSE_IN_DOUBLE = (2.0**-36, 2.0**-26, 2.0**-13)
"""The same in float64: the narrowest is ``2**16`` roundings (``2**-52``) wide, the widest is that
of float32."""
_FAR = 2.0**-6
"""How far to move, in units of the input's scale, to see the slope that steps have from afar: 128
times the widest of the close steps."""
_VISIBLE = 2.0
"""A change this many roundings (eps) of the output large is not lost by chance: one could be."""
_MOST = 0.5
"""The share of entries that stay the same, or that move, from which on it speaks for steps: most of
them."""
_MIDDLE, _NEAR = 2.0**-7, 2.0**-12
"""In proportion to each entry: two roundings of bfloat16, so that a function that merely computes
in half precision is not made of steps; and what no function in float32 fails to see."""
_WHOLE = 1.0
"""In units of the input's scale: so far that most entries of a rounded tensor come to another
step."""
_FAR_AWAY = (-16.0, 16.0)
"""In units of the input's scale: far enough for coarse steps, such as those of a sign, to be
crossed."""


def is_piecewise_constant(context: ProbeContext, output: int, variable: int) -> bool:
    """Return whether most entries of an output that change from afar stay the same from close by.

    Args:
        context: gives the function, the point, directions and the machine epsilon.
        output: the index of the output.
        variable: the index of the variable that moves.
    """
    eps = context.precision.eps
    known = context.point.outputs[output].tensor.double()
    far = change_along(context, output, variable, _FAR)
    if far is None:
        return False
    for step in _CLOSE_IN_DOUBLE if context.precision.is_double else _CLOSE:
        close = change_along(context, output, variable, step)
        if close is None:
            return False
        expected = far.abs() * (step / _FAR)
        visible = expected > _VISIBLE * eps * known.abs()
        # A coarse look may find a slope only in those entries that crossed a step.
        if bool(visible.any()) and float((close[visible] == 0).double().mean()) > _MOST:
            return True
    return False


def is_quantized(context: ProbeContext, output: int, variable: int) -> bool:
    """Return whether an output stays the same, bit for bit, although its variable moves visibly.

    It has to change along larger steps, and by far fewer entries along small ones than a function
    that computes in any floating-point type.

    Args:
        context: gives the function, the point and directions.
        output: the index of the output.
        variable: the index of the variable that moves.
    """
    values = context.point.values[variable]
    # Zeros do not move in proportion to themselves.
    moves = int((torch.isfinite(values) & (values != 0)).sum())
    if not values.numel() or moves < _MOST * values.numel():
        return False
    along = context.in_proportion(variable, context.direction(0, variable))
    near, middle = (
        change_along(context, output, variable, step, along) for step in (_NEAR, _MIDDLE)
    )
    far = change_along(context, output, variable, _WHOLE, context.direction(0, variable))
    if near is None or middle is None or far is None or not bool((near == 0).all()):
        return False
    return int((middle != 0).sum()) <= _MOST * int((far != 0).sum())


def has_any_effect(context: ProbeContext, output: int, variable: int) -> bool:
    """Return whether an output changes along some step of a random direction, small or large."""
    for step in (_NEAR, _MIDDLE, _WHOLE, *_FAR_AWAY):
        change = change_along(context, output, variable, step)
        if change is None or bool((change != 0).any()):
            return True
    return False


def change_along(
    context: ProbeContext,
    output: int,
    variable: int,
    step: float,
    along: torch.Tensor | None = None,
) -> torch.Tensor | None:
    """Return what a step changes in an output, in float64; None where that can't be told.

    Args:
        context: gives the function and the point.
        output: the index of the output.
        variable: the index of the variable that moves.
        step: how far.
        along: in which direction; the first random one where nothing is said.
    """
    point = context.point
    values = list(point.values)
    along = context.direction(0, variable) if along is None else along
    values[variable] = values[variable] + step * along
    try:
        produced = evaluate(context.subject, values, recorded=point.recorded)
        found = match_outputs(context.subject, point.outputs, produced)[output]
    except Exception:  # noqa: BLE001 - the user's function may fail off the given point
        return None
    change = found.double() - point.outputs[output].tensor.double()
    finite = point.finite[output]
    return change if finite is None else change.where(finite, 0.0)
