"""A derivative from central differences, with the error that it may have.

A ladder of ever smaller steps gives a central difference each. Extrapolation to step zero removes
the truncation error, order by order (Richardson 1911); the entry of the extrapolation table that
its neighbours bear out best is taken (Ridders, "Accurate computation of F'(x) and F'(x)F''(x)",
Advances in Engineering Software 4, 1982). Its error is what was measured: the disagreement with
its neighbours, the rounding error, the noise that smaller steps show, and what kinks leave over.

Plain arithmetic on floats; nothing here knows tensors or functions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Estimate", "Level", "estimate_limit"]

_MAX_ORDER = 3
"""How many terms of the error are extrapolated away: central differences have even powers of the
step, so that ``h**8`` is left. Chosen: each order more takes a step more, and magnifies
rounding."""
_CONTRADICTION = 3.0
"""By how many times both errors a finer estimate has to differ from a coarser one to replace it:
estimated errors are right in order of magnitude. Chosen, a little below ``derivative.SAFETY``."""


@dataclass(frozen=True, slots=True)
class Level:
    """One central difference.

    Attributes:
        step: the half width of the difference.
        slope: the central difference, or its deviation from an expected value.
        rounding: the error of ``slope`` that rounding of the function's values may cause.
        kink: the part of the second difference divided by the step that does not vanish with the
            step: zero where the function is smooth, the jump of the slope where it has a kink.
        unchanged: whether both values equal the one at the centre, bit for bit.
    """

    step: float
    slope: float
    rounding: float = 0.0
    kink: float = 0.0
    unchanged: bool = False


@dataclass(frozen=True, slots=True)
class Estimate:
    """The limit of the slopes at step zero, and its error.

    ``error`` is the sum of ``truncation`` (disagreement within the extrapolation table),
    ``rounding`` (foreseen and measured) and ``kink``. It is infinite where too few steps could be
    taken.
    """

    value: float
    truncation: float
    rounding: float
    kink: float
    step: float

    @property
    def error(self) -> float:
        """Add up the parts of the error."""
        return self.truncation + self.rounding + self.kink

    @property
    def main_error(self) -> str:
        """Name the largest part of the error."""
        parts = {"kink": self.kink, "rounding": self.rounding, "truncation": self.truncation}
        return max(parts, key=lambda name: parts[name])


UNKNOWN = Estimate(value=0.0, truncation=math.inf, rounding=0.0, kink=0.0, step=math.nan)


def estimate_limit(levels: Sequence[Level]) -> Estimate:
    """Extrapolate the slopes to step zero.

    >>> import math
    >>> steps = [2.0**-exponent for exponent in (3, 5, 7)]
    >>> slopes = [(math.sin(1 + h) - math.sin(1 - h)) / (2 * h) for h in steps]
    >>> limit = estimate_limit([Level(h, s, rounding=1e-16 / h) for h, s in zip(steps, slopes)])
    >>> abs(limit.value - math.cos(1)) < limit.error < 1e-6
    True

    Args:
        levels: largest step first, steps strictly decreasing.

    Returns:
        The best estimate. One from coarse steps that finer steps contradict is dropped: the
        function then has structure, such as a kink near by, that the coarse steps strode over.
    """
    levels, quantum = _drop_levels_below_resolution(levels)
    candidates = _candidates(levels, quantum)
    if not candidates:
        return UNKNOWN
    best = min(candidates, key=lambda candidate: candidate.error)
    while True:
        contradicting = [
            finer
            for finer in candidates
            if finer.step < best.step
            and abs(finer.value - best.value) > _CONTRADICTION * (finer.error + best.error)
        ]
        if not contradicting:
            return best
        best = min(contradicting, key=lambda candidate: candidate.error)


def _drop_levels_below_resolution(levels: Sequence[Level]) -> tuple[Sequence[Level], float]:
    """Leave out steps that are too small to change the function's values.

    A function that computes in a coarser type than its input's is a staircase. Steps within one
    stair show a slope of zero however well they agree. Returns the other levels and the amount by
    which the values should have changed at the largest step that was left out.
    """
    if all(level.unchanged for level in levels):
        return levels, 0.0
    kept = [level for level in levels if not level.unchanged or level.slope == 0.0]
    flat = [level for level in kept if level.unchanged]
    if flat and flat == kept[-len(flat) :]:
        # What the largest of these steps did not change, a slope that the smaller ones hide would
        # have changed.
        kept[-len(flat) :] = [replace(level, rounding=flat[0].rounding) for level in flat]
    dropped = [level for level in levels if level.unchanged and level.slope != 0.0]
    return kept, max((abs(level.slope) * level.step for level in dropped), default=0.0)


def _candidates(levels: Sequence[Level], quantum: float) -> list[Estimate]:
    candidates = []
    row: list[float] = []
    for index, level in enumerate(levels):
        previous, row = row, [level.slope]
        for order in range(1, min(index, _MAX_ORDER) + 1):
            ratio = (levels[index - order].step / level.step) ** 2
            value = row[-1] + (row[-1] - previous[order - 1]) / (ratio - 1.0)
            disagreement = max(abs(value - row[-1]), abs(value - previous[order - 1]))
            row.append(value)
            noise = max(
                (abs(finer.slope - value) * finer.step for finer in levels[index + 1 :]),
                default=0.0,
            )
            candidates.append(
                Estimate(
                    value=value,
                    truncation=disagreement,
                    rounding=level.rounding + (noise + quantum) / level.step,
                    kink=level.kink,
                    step=level.step,
                )
            )
    return candidates
