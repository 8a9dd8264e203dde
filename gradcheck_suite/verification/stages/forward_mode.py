"""Do forward mode and reverse mode agree?

For a random direction v and cotangent u, ``<u, J v>`` from forward mode and ``<J^T u, v>`` from
reverse mode are the same number. Which of the two is wrong follows from finite differences.
"""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING

import torch
from torch.autograd import forward_ad

from gradcheck_suite import catalogue
from gradcheck_suite.findings import Finding
from gradcheck_suite.verification.diagnosis.function_source import error_place, returned_place
from gradcheck_suite.verification.numerics.comparison import noise_floors
from gradcheck_suite.verification.numerics.derivative import measure
from gradcheck_suite.verification.numerics.evaluation_point import match_outputs
from gradcheck_suite.verification.numerics.recorded_call import RecordedCall
from gradcheck_suite.verification.stage import CheckState, StageResult
from gradcheck_suite.verification.target.graph_walk import only
from gradcheck_suite.verification.text import one_line

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["compare_forward_mode"]

_MANY = 8
"""For how many variables a disagreement is looked at one by one. A bound on cost."""


def compare_forward_mode(state: CheckState) -> StageResult:
    """Compare forward mode with reverse mode: all variables together, then each that differs."""
    with warnings.catch_warnings():
        # torch compiles decompositions with its own deprecated tools.
        warnings.simplefilter("ignore")
        return _compared(state)


def _compared(state: CheckState) -> StageResult:
    variables = [
        index for index, variable in enumerate(state.subject.variables) if variable.value.numel()
    ]
    directions = {index: state.context.direction(0, index) for index in variables}
    try:
        together = _pushed(state, directions)
    except Exception as error:  # noqa: BLE001 - an op without forward mode, or a wrong jvp
        return _refused(state, error)
    if not _differing(state, directions, together):
        return StageResult(covered=("forward mode: agrees with reverse mode",))
    findings = []
    for variable in variables[:_MANY]:
        alone = {variable: directions[variable]}
        pushed = _pushed(state, alone)
        for output in _differing(state, alone, pushed):
            finding = _mismatch(state, (output, variable), alone, pushed[output])
            if finding is not None:
                findings.append(finding)
    return StageResult(findings=tuple(_first_of_each_place(findings)))


def _pushed(state: CheckState, directions: Mapping[int, torch.Tensor]) -> list[float]:
    """Return ``<cotangent, J direction>`` of each output by forward mode."""
    point = state.context.point
    cotangents = state.context.cotangents(point, 0)
    with forward_ad.dual_level():
        values = [
            forward_ad.make_dual(variable.copy(value), directions[index])  # type: ignore[no-untyped-call]
            if index in directions
            else variable.copy(value)
            for index, (variable, value) in enumerate(
                zip(state.subject.variables, point.values, strict=True)
            )
        ]
        tensors = match_outputs(state.subject, point.outputs, state.subject(values))
        found = []
        for tensor, given in zip(tensors, cotangents, strict=True):
            tangent = forward_ad.unpack_dual(tensor).tangent  # type: ignore[no-untyped-call]
            # torch annotates it as a tensor; it is None where nothing moves the output.
            known_tangent: torch.Tensor | None = tangent
            found.append(
                0.0
                if known_tangent is None
                else float((known_tangent.double() * given.double()).where(given != 0, 0.0).sum())
            )
    return found


def _pulled(
    state: CheckState, output: int, directions: Mapping[int, torch.Tensor]
) -> tuple[float, float]:
    """Return ``<J^T cotangent, direction>`` of one output, and how large its terms are."""
    total, square = 0.0, 0.0
    for variable, direction in directions.items():
        part = state.context.gradients.rows[output][variable]
        if part is not None:
            product = part.double() * direction.double()
            total += float(product.sum())
            square += float(product.square().sum())
    return total, math.sqrt(square)


def _differing(
    state: CheckState, directions: Mapping[int, torch.Tensor], pushed: list[float]
) -> list[int]:
    point, precision = state.context.point, state.context.precision
    floors = noise_floors(point, state.context.cotangents(point, 0), precision)
    found = []
    for output, forward in enumerate(pushed):
        reverse, size = _pulled(state, output, directions)
        floor = sum(
            floors[output][variable] * float(torch.linalg.vector_norm(direction.double()))
            for variable, direction in directions.items()
        )
        allowed = precision.linearity * max(size, abs(forward), floor)
        if not abs(forward - reverse) <= allowed and math.isfinite(reverse):
            found.append(output)
    return found


def _mismatch(
    state: CheckState,
    pair: tuple[int, int],
    direction: Mapping[int, torch.Tensor],
    forward: float,
) -> Finding | None:
    """Report a mismatch, unless forward mode is right and reverse mode was told of already."""
    output, _ = pair
    point = state.context.point
    reverse, _ = _pulled(state, output, direction)
    result = measure(
        state.subject,
        point,
        state.context.cotangents(point, 0),
        state.context.gradients,
        dict(direction),
        precision=state.context.precision,
        thorough=True,
    )[output]
    near = abs(forward - result.numeric) <= abs(reverse - result.numeric)
    if near and state.conclusions[pair].status == "fail":
        return None
    wrong = "reverse" if near else "forward"
    functions = _with_jvp(state)
    function = only(functions)
    names = state.context.names(pair)
    return Finding.of(
        catalogue.FORWARD_MODE_MISMATCH,
        f"derivative of `{names[0]}` along `{names[1]}` is {forward:.6g} by forward mode and "
        f"{reverse:.6g} by reverse mode; finite differences give {result.numeric:.6g} ± "
        f"{result.tolerance:.1g}, so {wrong} mode is wrong"
        + (f"; {function.__qualname__} defines jvp" if function else ""),
        detector="verify",
        location=returned_place(function, "jvp").location,
        hint="jvp(ctx, *tangents) returns J v: check it term by term against backward, J^T g",
        evidence={
            "output": names[0],
            "input": names[1],
            "forward": forward,
            "reverse": reverse,
            "numeric": result.numeric,
            "wrong": wrong,
        },
    )


def _refused(state: CheckState, error: Exception) -> StageResult:
    """Tell an op without forward mode from a jvp that fails."""
    functions = _with_jvp(state)
    if isinstance(error, NotImplementedError) or not functions:
        return StageResult(not_covered=(f"forward mode: {one_line(error)}",))
    function = only(functions)
    name = f"jvp of {function.__qualname__}" if function else "forward mode"
    return StageResult(
        findings=(
            Finding.of(
                catalogue.FORWARD_MODE_MISMATCH,
                f"{name} raises, where reverse mode does not: {one_line(error)}",
                detector="verify",
                location=error_place(error, function, "jvp").location,
                hint="jvp takes ctx and one tangent, or None, for each argument of forward",
                evidence={"functions": [found.__qualname__ for found in functions]},
            ),
        )
    )


def _with_jvp(state: CheckState) -> list[type]:
    """List the custom Functions in the graph that define forward mode themselves."""
    return [
        function
        for function in RecordedCall.of(state.subject, state.context.point).functions()
        if getattr(function, "jvp", None) is not torch.autograd.Function.jvp
    ]


def _first_of_each_place(findings: list[Finding]) -> list[Finding]:
    """Keep one finding of each line, and all that have none."""
    seen = set()
    kept = []
    for finding in findings:
        if finding.location is None or finding.location not in seen:
            kept.append(finding)
            seen.add(finding.location)
    return kept
