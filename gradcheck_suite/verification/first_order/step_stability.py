"""Ask of a wrong gradient in float32 whether it is as wrong along much smaller steps.

What a wrong gradient leaves unexplained is in proportion to the step. Steps that stride over many
kinks (the places that numbers change in a long sort), over jumps or past a pole see a slope that
the function does not have, however well they agree with each other. In float32 no single probe sees
much at steps that small; the same few probes at both steps, taken together, see whether the
deviation is there.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, TypeAlias

import torch

from gradcheck_suite.verification.first_order.pooled_probes import ProbePool
from gradcheck_suite.verification.numerics.decision import Pair
from gradcheck_suite.verification.numerics.derivative import differentiate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gradcheck_suite.verification.first_order.probe_context import ProbeContext
    from gradcheck_suite.verification.numerics.evaluation_point import Point

__all__ = ["vanishing_at_smaller_steps"]

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
_FEW = 8
"""Of more variables than these, all move together first, and each by itself only if the deviation
that they share vanishes: where so many gradients look wrong, one cause spoils them. A bound on
cost."""

_Question: TypeAlias = tuple[Pair, float, bool]
"""Of which pair, at which smaller step, and whether that is in proportion to each entry."""


def vanishing_at_smaller_steps(
    context: ProbeContext, point: Point, failing: Mapping[Pair, float]
) -> set[Pair]:
    """Return the pairs of which the deviation is certainly not there at smaller steps.

    Each probe differentiates once for all pairs, and evaluates the function at all steps of a
    variable for all outputs.

    Args:
        context: draws directions and cotangents.
        point: where the gradients looked wrong.
        failing: at which half width each of them did.
    """
    steps = {pair: step for pair, step in failing.items() if math.isfinite(step)}
    variables = sorted({variable for _, variable in steps})
    if len(variables) > _FEW and not _looks(context, point, steps, [variables]):
        return set()
    return _looks(context, point, steps, [[variable] for variable in variables])


def _looks(
    context: ProbeContext,
    point: Point,
    failing: Mapping[Pair, float],
    groups: Sequence[Sequence[int]],
) -> set[Pair]:
    """Return the pairs of groups that move together and see the deviation vanish in both looks."""
    smaller = {
        (pair, one, in_proportion)
        for pair, step in failing.items()
        for one in _STEPS
        for in_proportion in (False, True)
        if one * _CLOSER <= step
    }
    for first, count in ((_FIRST, _PROBES), (_FIRST_AGAIN, _PROBES_AGAIN)):
        # The error of so few probes is too small by chance now and then.
        smaller = _contradicted(
            context,
            point,
            failing,
            groups=groups,
            asked=smaller,
            numbers=range(first, first + count),
        )
    return {pair for pair, _, _ in smaller}


def _contradicted(
    context: ProbeContext,
    point: Point,
    failing: Mapping[Pair, float],
    *,
    groups: Sequence[Sequence[int]],
    asked: set[_Question],
    numbers: range,
) -> set[_Question]:
    """Return at which smaller steps of those asked for the deviation is not the usual one.

    They are of one size for all entries, or in proportion to each.
    """
    pools: list[tuple[list[_Question], tuple[float, ...], ProbePool]] = []
    for group, in_proportion in itertools.product(groups, (False, True)):
        own = [one for one in asked if one[0][1] in group and one[2] is in_proportion]
        taken = {failing[pair] for pair, _, _ in own} | {step for _, step, _ in own}
        ordered = tuple(sorted(taken))
        if own:
            probes = ProbePool(context, point, group, ordered, in_proportion=in_proportion)
            pools.append((own, ordered, probes))
    for number in numbers if pools else ():
        rows = differentiate(context.subject, point, context.cotangents(point, number)).rows
        pools = [one for one in pools if one[2].take(number, rows)]
    found = set()
    for own, steps, probes in pools:
        for (output, variable), smaller, in_proportion in own:
            seen = probes.regression(output)
            usual, closer = (
                seen.deviations(steps.index(step)) / step
                for step in (failing[output, variable], smaller)
            )
            share, error = _share(usual, closer)
            if share + _CERTAIN * error < _LEAST or share - _CERTAIN * error > _MOST:
                found.add(((output, variable), smaller, in_proportion))
    return found


def _share(usual: torch.Tensor, closer: torch.Tensor) -> tuple[float, float]:
    """Fit the one by the other through the origin; return the slope and its standard error."""
    square = float(usual.square().sum())
    if square == 0.0:
        return 1.0, math.inf
    share = float(usual @ closer) / square
    left = (closer - share * usual) * usual
    return share, float(torch.linalg.vector_norm(left)) / square
