"""What kind of error a wrong gradient has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

import torch

from gradcheck_suite.verification.custom_functions import GraphPath, graph_path
from gradcheck_suite.verification.points import match_outputs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gradcheck_suite.verification.probes import Measurement
    from gradcheck_suite.verification.survey import Survey

__all__ = ["ErrorKind", "TracedCall", "error_kind"]

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


class TracedCall:
    """One recorded call of a survey's function, to ask what lies between outputs and variables."""

    def __init__(self, survey: Survey) -> None:
        with torch.enable_grad():
            self._leaves = [value.clone().requires_grad_() for value in survey.point.values]
            self._tensors = match_outputs(
                survey.subject, survey.point.outputs, survey.subject(self._leaves)
            )

    def path(self, output: int, variable: int) -> GraphPath:
        """Walk the graph between an output and a variable."""
        return graph_path(self._tensors[output], self._leaves[variable])

    def whole_graph(self, output: int) -> GraphPath:
        """Tell which custom Functions are anywhere in the graph of an output."""
        return graph_path(self._tensors[output], None)
