"""What kind of error a wrong gradient has, and which entries are wrong."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

import torch

from gradcheck_suite.verification.custom_functions import GraphPath, graph_path
from gradcheck_suite.verification.directions import generator_for, spread_signs
from gradcheck_suite.verification.points import match_outputs
from gradcheck_suite.verification.probes import (
    Measurement,
    differentiate,
    measure,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gradcheck_suite.verification.options import Precision
    from gradcheck_suite.verification.survey import Survey

__all__ = ["ErrorKind", "TracedCall", "WrongEntry", "error_kind", "find_wrong_entry"]

ErrorKind: TypeAlias = Literal["missing", "zero", "sign", "factor", "other"]

# Where a ratio is the same in every random direction, each entry has it.
_SAME_RATIO = 1e-2
_FEWEST_RATIOS = 2
_SMALL = 32
_CLEARLY_WRONG = 3.0


@dataclass(frozen=True, slots=True)
class WrongEntry:
    """One entry of a gradient that is wrong.

    ``analytic`` and ``numeric`` are the derivatives of the output, weighted by a cotangent unless
    it has one element, with respect to the entry at ``index``. ``wrong`` of ``examined`` entries
    were found wrong.
    """

    index: tuple[int, ...]
    analytic: float
    numeric: float
    wrong: int
    examined: int
    weighted: bool


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


def find_wrong_entry(survey: Survey, output: int, variable: int, step: float) -> WrongEntry | None:
    """Narrow a failure down to one entry of the variable.

    The half of the entries whose deviation is larger is halved again: for n entries this takes
    about log2(n) measurements. Small tensors are looked at entry by entry.

    Args:
        survey: what was measured so far.
        output: index of the output.
        variable: index of the variable.
        step: the step, relative to the variable's scale, at which the failure was measured.

    Returns:
        The entry, or None if no entry by itself is clearly wrong.
    """
    search = _Search(survey, output, variable, step)
    count = survey.point.values[variable].numel()
    if count <= _SMALL:
        results = [search.single(entry) for entry in range(count)]
        wrong = [entry for entry in range(count) if search.is_wrong(results[entry])]
        if not wrong:
            return None
        worst = max(wrong, key=lambda entry: abs(results[entry].deviation))
        return search.entry(worst, results[worst], wrong=len(wrong), examined=count)
    low, high = 0, count
    whole = search.span(low, high).deviation
    while high - low > 1:
        middle = (low + high) // 2
        first = search.span(low, middle).deviation
        if abs(first) >= abs(whole - first):
            high, whole = middle, first
        else:
            low, whole = middle, whole - first
    result = search.single(low)
    return search.entry(low, result, wrong=1, examined=1) if search.is_wrong(result) else None


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


class _Search:
    """Measures parts of one variable's direction."""

    def __init__(self, survey: Survey, output: int, variable: int, step: float) -> None:
        self._survey = survey
        self._output = output
        self._variable = variable
        point = survey.point
        cotangents = [torch.zeros_like(known.tensor) for known in point.outputs]
        tensor = point.outputs[output].tensor
        self.weighted = tensor.numel() > 1
        drawn = spread_signs(tensor, generator_for(0, output, variable))
        cotangents[output] = drawn if self.weighted else torch.ones_like(tensor)
        finite = point.finite[output]
        if finite is not None:
            cotangents[output] = cotangents[output].where(finite, 0.0)
        self._cotangents = tuple(cotangents)
        self._gradients = differentiate(survey.subject, point, cotangents)
        self._direction = survey.direction(0, variable)
        steps = survey.precision.steps
        ratio = steps[0] / steps[1]
        self._precision: Precision = replace(
            survey.precision, steps=(step * ratio**2, step * ratio, step), first=3
        )

    def span(self, low: int, high: int) -> Measurement:
        """Measure with only the entries from ``low`` to ``high`` moving."""
        part = torch.zeros_like(self._direction).flatten()
        part[low:high] = self._direction.flatten()[low:high]
        return measure(
            self._survey.subject,
            self._survey.point,
            self._cotangents,
            self._gradients,
            {self._variable: part.view_as(self._direction)},
            precision=self._precision,
            thorough=False,
        )[self._output]

    def single(self, entry: int) -> Measurement:
        """Measure with one entry moving."""
        return self.span(entry, entry + 1)

    def is_wrong(self, result: Measurement) -> bool:
        """Say whether one entry deviates by more than its measurement can explain."""
        size = max(abs(result.numeric), abs(result.analytic))
        return result.z > _CLEARLY_WRONG and abs(result.deviation) > self._precision.rtol * size

    def entry(self, entry: int, result: Measurement, *, wrong: int, examined: int) -> WrongEntry:
        """Describe one wrong entry, per unit of that entry."""
        length = float(self._direction.flatten()[entry])
        value = self._survey.point.values[self._variable]
        index = torch.unravel_index(torch.tensor(entry), value.shape) if value.dim() else ()
        return WrongEntry(
            index=tuple(int(i) for i in index),
            analytic=result.analytic / length,
            numeric=result.numeric / length,
            wrong=wrong,
            examined=examined,
            weighted=self.weighted,
        )
