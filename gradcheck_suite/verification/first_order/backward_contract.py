"""What every backward owes its callers, whatever it computes.

It gives the same gradient twice, is linear in the incoming gradient, and only reads it. These
need no differences: equality up to rounding is asked for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gradcheck_suite.verification.numerics.comparison import (
    REVERSED_AND_SCALED,
    added,
    difference,
    noise_floors,
    row_differences,
)
from gradcheck_suite.verification.numerics.decision import Pair
from gradcheck_suite.verification.numerics.derivative import Gradients, differentiate
from gradcheck_suite.verification.numerics.recorded_call import RecordedCall

if TYPE_CHECKING:
    import torch

    from gradcheck_suite.verification.numerics.evaluation_point import Point
    from gradcheck_suite.verification.numerics.precision import Precision
    from gradcheck_suite.verification.target.pure_function import PureFunction

__all__ = ["ContractBreaches", "check_contracts"]

_ROUNDING = 256.0
"""Up to so many roundings (eps) of the largest entry two identical backwards may differ: sums by
atomics come in another order each time. Chosen: the roundings of some sixty thousand terms, as they
grow with the root of their number."""


@dataclass(frozen=True, slots=True)
class ContractBreaches:
    """What was broken, for each (output, variable) pair.

    ``unequal`` holds the relative difference of two identical backwards, ``nonlinear`` that of
    ``backward(s * g) / s`` and ``backward(g)``; ``written`` holds outputs whose cotangent backward
    wrote into; ``undefined`` the outputs whose gradients come out wrong where the others are not
    used, and by how much. ``unequal_by_rounding`` are the pairs whose difference is rounding alone.
    ``rounding`` holds what is no breach and shows how exactly backward computes: one that works
    with logarithms of the incoming gradient rounds differently when that is scaled.
    """

    unequal: Mapping[Pair, float]
    unequal_by_rounding: frozenset[Pair]
    nonlinear: Mapping[Pair, float]
    written: frozenset[int]
    rounding: Mapping[Pair, float]
    undefined: Mapping[int, float] = field(default_factory=dict)

    def differs(self, pair: Pair) -> bool:
        """Return whether two identical backwards differ by more than rounding."""
        return pair in self.unequal and pair not in self.unequal_by_rounding

    def explains(self, pair: Pair) -> bool:
        """Return whether a wrong gradient of this pair needs no other cause."""
        return pair in self.nonlinear or self.differs(pair) or pair[0] in self.undefined


def check_contracts(
    subject: PureFunction,
    point: Point,
    cotangents: Sequence[torch.Tensor],
    gradients: Gradients,
    *,
    precision: Precision,
) -> ContractBreaches:
    """Run backward a second time, and once more on a scaled cotangent.

    A backward may pick another algorithm for other sizes and round differently; what is smaller
    than the precision's ``linearity`` is no breach of linearity.
    """
    written = frozenset(index for index, hit in enumerate(gradients.written) if hit)
    if any(noise is not None for noise in point.noise):
        return ContractBreaches({}, frozenset(), {}, written, {})
    again = differentiate(subject, point, cotangents)
    unequal = _differences(gradients, again, factor=1.0)
    undefined = undefined_outputs(subject, point, cotangents, gradients, precision=precision)
    scaled = differentiate(subject, point, cotangents, scale=REVERSED_AND_SCALED)
    differences = _differences(gradients, scaled, factor=REVERSED_AND_SCALED)
    nonlinear = {
        pair: difference
        for pair, difference in differences.items()
        if difference > precision.linearity + 4.0 * unequal.get(pair, 0.0)
        and pair[0] not in undefined
    }
    return ContractBreaches(
        unequal=unequal,
        unequal_by_rounding=frozenset(
            pair for pair, difference in unequal.items() if difference <= _ROUNDING * precision.eps
        ),
        nonlinear=nonlinear,
        written=written,
        undefined=undefined,
        rounding={
            pair: difference for pair, difference in differences.items() if pair not in nonlinear
        },
    )


def _differences(first: Gradients, second: Gradients, *, factor: float) -> dict[Pair, float]:
    """Return the largest difference of each pair that has one, relative to its largest entry."""
    found = {}
    for output, (row, other) in enumerate(zip(first.rows, second.rows, strict=True)):
        for variable, (one, two) in enumerate(zip(row, other, strict=True)):
            if one is None or two is None:
                continue
            apart = difference(one, two.double() / factor)
            if 0.0 < apart < math.inf:
                found[output, variable] = apart
    return found


def undefined_outputs(
    subject: PureFunction,
    point: Point,
    cotangents: Sequence[torch.Tensor],
    gradients: Gradients,
    *,
    precision: Precision,
) -> dict[int, float]:
    """Compare the gradients of each output by itself with those for zeros in place of the others.

    Where they add up to the gradients of all outputs together, there is nothing to look for.
    """
    if sum(gradients.attached) < 2:  # noqa: PLR2004 - several outputs
        return {}
    try:
        recording = RecordedCall.of(subject, point)
        together = recording.pull({index: given.clone() for index, given in enumerate(cotangents)})
        summed = [added(column) for column in zip(*gradients.rows, strict=True)]
        floors = noise_floors(point, cotangents, precision)
        total = [sum(column) for column in zip(*floors, strict=True)]
        if max(row_differences(together, summed, total)) <= precision.linearity:
            return {}
        found = {}
        for output in recording.attached:
            given = {
                index: cotangents[index] * float(index == output) for index in recording.attached
            }
            apart = max(
                row_differences(recording.pull(given), gradients.rows[output], floors[output])
            )
            if apart > precision.linearity:
                found[output] = apart
    except Exception:  # noqa: BLE001 - such as a backward that fails on explicit zeros
        return {}
    return {output: apart for output, apart in found.items() if math.isfinite(apart)}
