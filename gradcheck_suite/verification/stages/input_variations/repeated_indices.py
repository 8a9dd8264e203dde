"""Tell writes to one place, of which one is lost, from gradients that are not added up.

Where an index occurs twice, an op that reads by index has to add up gradients, and one that
writes by index keeps one of two values. torch documents the gradient of the latter (scatter,
index_copy, put_) as undefined.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from gradcheck_suite.verification.numerics.derivative import differentiate, draw_cotangents, measure
from gradcheck_suite.verification.numerics.directions import generator_for, random_signs, scales_of
from gradcheck_suite.verification.numerics.evaluation_point import evaluate, given_point

if TYPE_CHECKING:
    from gradcheck_suite.verification.stage import CheckState
    from gradcheck_suite.verification.target.pure_function import PureFunction

__all__ = ["is_overwritten", "repeats_indices"]

_STREAM = 95
"""Stream of cotangent and direction; any number does that no other stream uses."""


def repeats_indices(state: CheckState, subject: PureFunction) -> bool:
    """Return whether integer inputs hold values twice that they hold once at the given point."""
    return any(
        before.kind == "input"
        and not (before.value.is_floating_point() or before.value.is_complex())
        and before.value.layout == torch.strided
        and (before.value.shape != now.value.shape or not torch.equal(before.value, now.value))
        for before, now in zip(state.subject.constants, subject.constants, strict=True)
    )


def is_overwritten(state: CheckState, subject: PureFunction, pair: tuple[int, int]) -> bool:
    """Return whether the entry whose gradient is most wrong does not reach the output at all."""
    output, variable = pair
    precision = state.context.precision
    outputs = {found.name: found for found in subject.first_call()}
    point = given_point(
        subject,
        [outputs[expected.name] for expected in state.context.point.outputs],
        eps=precision.eps,
    )
    cotangents = draw_cotangents(point, generator_for(state.options.seed, _STREAM))
    gradients = differentiate(subject, point, cotangents)
    value = point.values[variable]
    scale = scales_of(point.values)[variable]
    direction = random_signs(value, generator_for(state.options.seed, _STREAM, 1)) * scale

    def deviation(low: int, high: int) -> float:
        part = torch.zeros_like(direction).flatten()
        part[low:high] = direction.flatten()[low:high]
        moved = {variable: part.view_as(direction)}
        results = measure(
            subject, point, cotangents, gradients, moved, precision=precision, thorough=False
        )
        return results[output].deviation

    low, high = 0, value.numel()
    whole = deviation(low, high)
    while high - low > 1:
        middle = (low + high) // 2
        first = deviation(low, middle)
        if abs(first) >= abs(whole - first):
            high, whole = middle, first
        else:
            low, whole = middle, whole - first
    offset = torch.zeros(value.numel(), dtype=value.dtype, device=value.device)
    offset[low] = scale
    moved = value + offset.view(value.shape)
    values = [moved if index == variable else state for index, state in enumerate(point.values)]
    now = evaluate(subject, values, recorded=point.recorded)
    named = {found.name: found.tensor for found in now}
    expected = point.outputs[output]
    return torch.equal(named[expected.name], expected.tensor)
