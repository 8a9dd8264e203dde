"""Do batched gradients agree with a loop?

``torch.autograd.grad(..., is_grads_batched=True)``, on which ``torch.func.jacrev`` and vectorised
Jacobians rest, runs backward once under vmap. A backward that looks at values, or whose Function
has a wrong ``vmap``, gives something else.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch

from gradcheck_suite import catalogue
from gradcheck_suite.findings import Finding
from gradcheck_suite.verification.diagnosis.function_source import returned_place
from gradcheck_suite.verification.numerics.comparison import noise_floors, row_differences
from gradcheck_suite.verification.numerics.evaluation_point import match_outputs
from gradcheck_suite.verification.numerics.recorded_call import RecordedCall
from gradcheck_suite.verification.stage import CheckState, StageResult
from gradcheck_suite.verification.target.dense_views import dense
from gradcheck_suite.verification.target.graph_walk import only
from gradcheck_suite.verification.text import one_line

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["compare_batched"]

_BATCH = 3
"""How many cotangents or inputs a batch has. Chosen: one is no batch, two is a size that other
dimensions often have, and each more is a backward or a call more."""


def compare_batched(state: CheckState) -> StageResult:
    """Send several incoming gradients through backward at once and one by one."""
    with warnings.catch_warnings():
        # torch warns of ops that have no batching rule and are run in a loop.
        warnings.simplefilter("ignore")
        parts = [_of_gradients(state)]
        if _with_vmap(state):
            parts.append(_of_inputs(state))
    return StageResult(
        findings=tuple(finding for part in parts for finding in part.findings)[:1],
        covered=tuple(line for part in parts for line in part.covered),
        not_covered=tuple(line for part in parts for line in part.not_covered),
    )


def _of_gradients(state: CheckState) -> StageResult:
    point, precision = state.context.point, state.context.precision
    recording = RecordedCall.of(state.subject, point)
    draws = [state.context.cotangents(point, probe) for probe in range(_BATCH)]
    floors = noise_floors(point, draws[0], precision)
    for output in recording.attached:
        given = torch.stack([draw[output] for draw in draws])
        loop = [recording.pull({output: draw[output].clone()}) for draw in draws]
        try:
            batched: Sequence[torch.Tensor | None] = torch.autograd.grad(
                recording.tensors[output],
                recording.leaves,
                given,
                retain_graph=True,
                allow_unused=True,
                is_grads_batched=True,
            )
        except Exception as error:  # noqa: BLE001 - an op without a batching rule, or the user's
            return StageResult(not_covered=(f"batched gradients: {one_line(error)}",))
        for index, expected in enumerate(loop):
            row = [None if part is None else dense(part[index]) for part in batched]
            apart = row_differences(expected, row, floors[output])
            if max(apart, default=0.0) > precision.linearity:
                return _mismatch(state, output, apart, "vmap of backward")
    return StageResult(covered=("batched gradients: agree with a loop",))


def _of_inputs(state: CheckState) -> StageResult:
    """Run forward and backward under vmap, for Functions that say how."""
    point, precision = state.context.point, state.context.precision
    cotangents = state.context.cotangents(point, 0)

    def pulled(*values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        def outputs(*leaves: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return tuple(match_outputs(state.subject, point.outputs, state.subject(leaves)))

        # Its annotation allows for a third value, which has_aux=True asks for.
        result: Any = torch.func.vjp(outputs, *values)
        # Copies: a backward may write into what it is given.
        return (*result[1](tuple(given.clone() for given in cotangents)), *result[0])

    shifted = [value * 1.125 for value in point.values]
    try:
        loop = [pulled(*point.values), pulled(*shifted)]
        stacked = [torch.stack(pair) for pair in zip(point.values, shifted, strict=True)]
        batched = torch.func.vmap(pulled)(*stacked)
    except Exception as error:  # noqa: BLE001 - what can't be batched, or fails at other values
        return StageResult(not_covered=(f"vmap over the inputs: {one_line(error)}",))
    floors = [
        sum(column) for column in zip(*noise_floors(point, cotangents, precision), strict=True)
    ]
    count = len(floors)
    for index, expected in enumerate(loop):
        row = [part[index] for part in batched]
        apart = row_differences(expected[:count], row[:count], floors)
        values = row_differences(expected[count:], row[count:])
        if max(*apart, *values) > precision.linearity:
            return _mismatch(state, 0, apart, "vmap of the function", max(values))
    return StageResult(covered=("vmap over the inputs: agrees with a loop",))


def _mismatch(
    state: CheckState, output: int, apart: Sequence[float], what: str, values: float = 0.0
) -> StageResult:
    variable = max(range(len(apart)), key=lambda index: apart[index])
    functions = _with_vmap(state) or RecordedCall.of(state.subject, state.context.point).functions()
    function = only(functions)
    method = "vmap" if what == "vmap of the function" else "backward"
    names = state.context.names((output, variable))
    most = min(max(apart[variable], values), 1e300)
    subject = (
        f"`{names[0]}`"
        if values > apart[variable]
        else f"gradient of `{names[0]}` with respect to `{names[1]}`"
    )
    return StageResult(
        findings=(
            Finding.of(
                catalogue.BATCHED_GRADIENT_MISMATCH,
                f"{subject} by {what} differs from that of a loop, by {most:.2g} of its size"
                + (f"; {function.__qualname__} is the Function on the way" if function else ""),
                detector="verify",
                location=returned_place(function, method).location,
                hint=(
                    "a backward that is batched may not branch on values, write in place into "
                    "unbatched tensors or count dimensions from the front"
                ),
                evidence={
                    "output": names[0],
                    "input": names[1],
                    "relative_difference": most,
                },
            ),
        )
    )


def _with_vmap(state: CheckState) -> list[type]:
    """List the custom Functions in the graph that say how they are batched."""
    return [
        function
        for function in RecordedCall.of(state.subject, state.context.point).functions()
        if getattr(function, "generate_vmap_rule", False)
        or getattr(function, "vmap", None) is not torch.autograd.Function.vmap
    ]
