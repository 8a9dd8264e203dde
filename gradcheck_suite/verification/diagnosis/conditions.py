"""When a gradient is wrong: in one type, in one layout, for one output, after other inputs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from gradcheck_suite.verification.diagnosis.whole_gradient import Claim
from gradcheck_suite.verification.numerics.derivative import differentiate
from gradcheck_suite.verification.numerics.directions import generator_for, random_signs
from gradcheck_suite.verification.numerics.evaluation_point import shifted_point
from gradcheck_suite.verification.text import short_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gradcheck_suite.verification.diagnosis.evidence import Evidence
    from gradcheck_suite.verification.numerics.decision import Conclusion
    from gradcheck_suite.verification.target.pure_function import PureFunction

__all__ = ["claim_on_staleness", "conditions_of"]

_STREAM = 9101
"""Seed of the draws that move inputs; any number does that no other stream uses."""


def conditions_of(
    evidence: Evidence, conclusions: Mapping[tuple[int, int], Conclusion]
) -> tuple[Claim, ...]:
    """Return what else is known of when the gradient is wrong and when right."""
    found = (_only_this_dtype(evidence), _only_this_layout(evidence))
    only = _only_this_output(evidence, conclusions)
    return tuple(claim for claim in (*found, only) if claim is not None)


def claim_on_staleness(evidence: Evidence) -> Claim | None:
    """See whether the gradient stays the same at other values, where the derivative does not."""
    context = evidence.context
    if not evidence.sharp:
        return None
    offsets = [
        0.25 * value.abs() * random_signs(value, generator_for(_STREAM, index))
        for index, value in enumerate(context.point.values)
    ]
    moved = shifted_point(context.subject, context.point, offsets)
    probe = evidence.probes[0]
    if moved is None or not bool((probe.gradient != 0.0).any()):
        return None
    cotangents = [torch.zeros_like(known.tensor) for known in moved.outputs]
    cotangents[evidence.output] = probe.cotangent.to(moved.outputs[evidence.output].tensor.dtype)
    row = differentiate(context.subject, moved, cotangents).rows[evidence.output]
    there = row[evidence.variable]
    if there is None or not torch.equal(there.double(), probe.gradient):
        return None
    result = evidence.deviation(probe.direction, probe.cotangent, point=moved)
    change = abs(result.numeric - probe.numeric)
    if not change > 4.0 * (result.tolerance + probe.tolerance):
        return None
    return Claim(
        "stale",
        "is the same for other inputs, and the numeric one is not: it is kept from another call, "
        "or leaves the inputs out",
    )


def _only_this_dtype(evidence: Evidence) -> Claim | None:
    point, subject = evidence.context.point, evidence.context.subject
    dtype = point.values[evidence.variable].dtype
    if dtype == torch.float64 or not evidence.sharp:
        return None
    constants = [
        constant.value.double() if constant.value.is_floating_point() else constant.value
        for constant in subject.constants
    ]
    values = [value.double() for value in point.values]
    if _is_right_there(evidence, subject.elsewhere(values=values, constants=constants), values):
        shown = short_name(dtype)
        return Claim("dtype", f"only in {shown}: in float64 it is right")
    return None


def _only_this_layout(evidence: Evidence) -> Claim | None:
    point, subject = evidence.context.point, evidence.context.subject
    if all(value.is_contiguous() for value in point.values) or not evidence.sharp:
        return None
    values = [value.contiguous() for value in point.values]
    if _is_right_there(evidence, subject.elsewhere(values=values), values):
        return Claim("layout", "only in this layout: for contiguous inputs it is right")
    return None


def _is_right_there(
    evidence: Evidence, subject: PureFunction, values: Sequence[torch.Tensor]
) -> bool:
    """Return whether the analytic gradient of the function elsewhere agrees with every probe."""
    outputs = evidence.context.point.outputs
    place = replace(evidence.context.point, values=tuple(values))

    def gradient(cotangent: torch.Tensor) -> torch.Tensor:
        cotangents = [torch.zeros_like(known.tensor) for known in outputs]
        cotangents[evidence.output] = cotangent
        part = differentiate(subject, place, cotangents).rows[evidence.output][evidence.variable]
        return torch.zeros_like(evidence.value) if part is None else part.double()

    try:
        return evidence.holds(lambda probe: gradient(probe.cotangent))
    except Exception:  # noqa: BLE001 - the user's function may refuse these tensors
        return False


def _only_this_output(
    evidence: Evidence, conclusions: Mapping[tuple[int, int], Conclusion]
) -> Claim | None:
    """Say so if the other outputs' gradients with respect to the same variable pass."""
    others = {
        output: conclusion.status
        for (output, variable), conclusion in conclusions.items()
        if variable == evidence.variable and output != evidence.output
    }
    if not others or set(others.values()) != {"pass"}:
        return None
    names = [f"`{evidence.context.point.outputs[output].name}`" for output in sorted(others)]
    shown = names[0] if len(names) == 1 else f"the {len(names)} other outputs"
    return Claim("output", f"only for this output: that of {shown} is right")
