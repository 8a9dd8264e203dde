"""Tell a function that is made of steps: it rounds, so that its gradient of zero is right.

Seen from afar the steps have a slope. Seen from close by an output stays exactly as it is, although
that slope would change it by several of its own roundings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradcheck_suite.verification.points import evaluate, match_outputs

if TYPE_CHECKING:
    import torch

    from gradcheck_suite.verification.survey import Survey

__all__ = ["is_staircase"]

# How far to move, in units of the input's scale. Narrower steps than these are the rounding of
# larger numbers on the way, as in (x + 100) - 100, which float32 can't tell from steps by design.
_CLOSE = (2.0**-19, 2.0**-16, 2.0**-13)
_CLOSE_IN_DOUBLE = (2.0**-36, 2.0**-26, 2.0**-13)
_FAR = 2.0**-6
# A change this many roundings of the output large is not lost by chance.
_VISIBLE = 2.0
_MOST = 0.5


def is_staircase(survey: Survey, output: int, variable: int) -> bool:
    """Say whether most entries of an output that change from afar stay the same from close by.

    Args:
        survey: gives the function, the point, directions and the machine epsilon.
        output: the index of the output.
        variable: the index of the variable that moves.
    """
    eps = survey.precision.eps
    known = survey.point.outputs[output].tensor.double()
    far = _changes(survey, output, variable, _FAR)
    if far is None:
        return False
    for step in _CLOSE_IN_DOUBLE if survey.precision.is_double else _CLOSE:
        close = _changes(survey, output, variable, step)
        if close is None:
            return False
        expected = far.abs() * (step / _FAR)
        visible = expected > _VISIBLE * eps * known.abs()
        # A coarse look may find a slope only in those entries that crossed a step.
        if bool(visible.any()) and float((close[visible] == 0).double().mean()) > _MOST:
            return True
    return False


def _changes(survey: Survey, output: int, variable: int, step: float) -> torch.Tensor | None:
    point = survey.point
    values = list(point.values)
    values[variable] = values[variable] + step * survey.direction(0, variable)
    try:
        produced = evaluate(survey.subject, values, recorded=point.recorded)
        found = match_outputs(survey.subject, point.outputs, produced)[output]
    except Exception:  # noqa: BLE001 - the user's function may fail off the given point
        return None
    change = found.double() - point.outputs[output].tensor.double()
    finite = point.finite[output]
    return change if finite is None else change.where(finite, 0.0)
