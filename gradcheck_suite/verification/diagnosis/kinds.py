"""A first look at a wrong gradient: what its failed measurements have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gradcheck_suite.verification.probes import Measurement

__all__ = ["ErrorKind", "error_kind"]

ErrorKind: TypeAlias = Literal["missing", "zero", "sign", "factor", "other"]

# Where a ratio is the same in every random direction, each entry has it.
_SAME_RATIO = 1e-2
_FEWEST_RATIOS = 2


def error_kind(measurements: Sequence[Measurement]) -> tuple[ErrorKind, float | None]:
    """Tell what the failed measurements of one pair have in common.

    Returns:
        The kind and, for "sign" and "factor", the ratio of analytic to numeric derivative.
    """
    if all(measurement.missing for measurement in measurements):
        return "missing", None
    if all(measurement.contribution == 0.0 for measurement in measurements):
        return "zero", None
    ratios = []
    for measurement in measurements:
        if measurement.numeric == 0.0:
            return "other", None
        ratios.append(measurement.analytic / measurement.numeric)
    middle = sorted(ratios)[len(ratios) // 2]
    slack = [
        _SAME_RATIO * 1e-3 + 2.0 * abs(m.tolerance / m.numeric) * abs(middle) for m in measurements
    ]
    same = all(abs(r - middle) <= s for r, s in zip(ratios, slack, strict=True))
    precise = all(s <= _SAME_RATIO * abs(middle) for s in slack)
    if len(ratios) < _FEWEST_RATIOS or not (same and precise):
        return "other", None
    return ("sign" if abs(middle + 1.0) <= max(slack) else "factor"), middle
