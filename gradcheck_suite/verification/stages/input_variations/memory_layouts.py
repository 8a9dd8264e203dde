"""The same values in other places: transposed, strided, offset and expanded inputs.

Each arrangement is made of differentiable operations, so that the function under test sees the
layout and the gradient still arrives at the contiguous variable it came from.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from gradcheck_suite.verification.numerics.comparison import noise_floors, row_differences
from gradcheck_suite.verification.numerics.recorded_call import RecordedCall
from gradcheck_suite.verification.stages.contracts.function_nodes import custom_nodes
from gradcheck_suite.verification.stages.input_variations.messages import (
    as_layout_dependent,
    backward_fails,
)
from gradcheck_suite.verification.stages.input_variations.rerun import VariationResult, attempt
from gradcheck_suite.verification.target.graph_walk import graph_path
from gradcheck_suite.verification.text import one_line

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from gradcheck_suite.verification.numerics.recorded_call import Row
    from gradcheck_suite.verification.stage import CheckState
    from gradcheck_suite.verification.target.pure_function import Arrangement, PureFunction

__all__ = [
    "arranged",
    "expandable",
    "lay_out",
    "rows_of",
    "same_rows",
    "shared",
    "try_layout",
]


def lay_out(tensor: torch.Tensor, layout: str) -> torch.Tensor:
    """Return a tensor of the same values that lies in memory as ``layout`` says.

    "strided" is every second element of a buffer of twice the size, one element in, with other
    numbers between; "transposed" has its dimensions in reverse order in memory; "offset" is
    contiguous and begins one element into its buffer; "expanded" has stride 0 in the dimension
    that ``expandable`` names, and takes the values there from its first slice.
    """
    if tensor.layout != torch.strided or tensor.numel() == 0:
        return tensor
    if layout == "strided":
        return torch.stack((_filler(tensor), tensor), dim=-1)[..., 1]
    if layout == "offset":
        flat = tensor.reshape(-1)
        return torch.cat((_filler(flat)[:1], flat))[1:].view(tensor.shape)
    if layout == "transposed":
        order = tuple(reversed(range(tensor.dim())))
        return tensor.permute(order).contiguous().permute(order)
    dimension = expandable(tensor)
    if dimension is None:
        return tensor
    return tensor.narrow(dimension, 0, 1).expand_as(tensor)


def expandable(tensor: torch.Tensor) -> int | None:
    """Return the first dimension of more than one element, which can be given stride 0."""
    return next((index for index, size in enumerate(tensor.shape) if size > 1), None)


def arranged(layout: str, variables: Collection[int], constants: Collection[int]) -> Arrangement:
    """Return an arrangement that lays out the variables and constants of these indices."""

    def arrange(
        values: Sequence[torch.Tensor], others: Sequence[torch.Tensor]
    ) -> tuple[Sequence[torch.Tensor], Sequence[torch.Tensor]]:
        return (
            [lay_out(v, layout) if i in variables else v for i, v in enumerate(values)],
            [lay_out(c, layout) if i in constants else c for i, c in enumerate(others)],
        )

    return arrange


def shared(variables: Collection[int], constants: Collection[int]) -> Arrangement:
    """Return an arrangement with the values of "expanded", each in a place of its own."""
    expand = arranged("expanded", variables, constants)

    def arrange(
        values: Sequence[torch.Tensor], others: Sequence[torch.Tensor]
    ) -> tuple[Sequence[torch.Tensor], Sequence[torch.Tensor]]:
        first, second = expand(values, others)
        return [_compact(tensor) for tensor in first], [_compact(tensor) for tensor in second]

    return arrange


def _compact(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous() if tensor.layout == torch.strided else tensor


def _filler(tensor: torch.Tensor) -> torch.Tensor:
    """Return what lies between the elements: for indices within their range, else constants.

    Constants, as the function would else depend on its inputs by what is none of them.
    """
    known = tensor.detach()
    if known.is_floating_point() or known.is_complex():
        count = torch.arange(known.numel(), device=known.device) % 7
        return (count * -0.75 + 1.25).to(known.dtype).view(known.shape)
    return ~known if known.dtype == torch.bool else known.flip(tuple(range(known.dim())))


_FEW = 4
"""How many inputs are tried by themselves in a layout that is not right for all of them. A bound on
cost."""


def try_layout(state: CheckState, layout: str) -> VariationResult:
    """Compare the gradients for inputs of one layout with those for contiguous ones.

    A difference counts once finite differences agree that the gradient for this layout is wrong:
    at ties a kernel may choose another element for another layout.
    """
    places = _places(state.subject, layout)
    if not places:
        return VariationResult(covered=False)
    whole = _tried(state, layout, places)
    if whole.covered or len(places) == 1:
        return whole
    # One input by itself says which it is, and one that is refused does not hide the others.
    singles = [_tried(state, layout, [place]) for place in places[:_FEW]]
    findings = tuple(finding for single in singles for finding in single.findings)
    return VariationResult(
        covered=any(single.covered for single in singles),
        findings=findings[:1] or whole.findings,
        not_covered=tuple(line for single in singles for line in single.not_covered)
        or whole.not_covered,
    )


def rows_of(recording: RecordedCall, cotangents: Sequence[torch.Tensor]) -> list[Row]:
    """Return the gradients of each output by itself."""
    return [recording.pull({index: given.clone()}) for index, given in enumerate(cotangents)]


def same_rows(state: CheckState, one: Sequence[Row], two: Sequence[Row]) -> bool:
    """Return whether gradients agree as far as the precision of backward goes."""
    allowed = state.context.precision.linearity
    unequal = max(state.context.breaches.unequal.values(), default=0.0)
    point = state.context.point
    floors = noise_floors(point, state.context.cotangents(point, 0), state.context.precision)
    return all(
        apart <= allowed + 4.0 * unequal
        for row, other, sizes in zip(one, two, floors, strict=True)
        for apart in row_differences(row, other, sizes)
    )


@dataclass(frozen=True, slots=True)
class _Place:
    name: str
    index: int
    varies: bool


def _places(subject: PureFunction, layout: str) -> list[_Place]:
    """List the inputs that this layout changes."""

    def suits(tensor: torch.Tensor) -> bool:
        if tensor.layout != torch.strided or tensor.numel() == 0:
            return False
        if layout == "transposed":
            return sum(size > 1 for size in tensor.shape) > 1
        return layout != "expanded" or expandable(tensor) is not None

    return [
        _Place(variable.name, index, varies=True)
        for index, variable in enumerate(subject.variables)
        if variable.kind == "input" and suits(variable.representation.rebuild(variable.value))
    ] + [
        _Place(constant.name, index, varies=False)
        for index, constant in enumerate(subject.constants)
        if constant.kind == "input" and suits(constant.value)
    ]


def _tried(state: CheckState, layout: str, places: Sequence[_Place]) -> VariationResult:
    variables = {place.index for place in places if place.varies}
    constants = {place.index for place in places if not place.varies}
    names = [place.name for place in places]
    label = _label(layout, names)
    point = state.context.point
    cotangents = state.context.cotangents(point, 0)
    varied = state.subject.elsewhere(arrangement=arranged(layout, variables, constants))
    rows: Sequence[Row] = state.context.gradients.rows
    tensors = state.context.gradients.outputs
    if layout == "expanded":
        compact = state.subject.elsewhere(arrangement=shared(variables, constants))
        try:
            reference = RecordedCall.of(compact, point)
            rows, tensors = rows_of(reference, cotangents), reference.tensors
        except Exception as error:  # noqa: BLE001 - whatever the user's function raises here
            return VariationResult(
                covered=False,
                not_covered=(f"{label}: values that repeat are refused, {one_line(error)}",),
            )
    try:
        recording = RecordedCall.of(varied, point)
    except Exception as error:  # noqa: BLE001 - as above
        return VariationResult(covered=False, not_covered=(f"{label}: raises {one_line(error)}",))
    try:
        seen = rows_of(recording, cotangents)
    except Exception as error:  # noqa: BLE001 - as above
        path = graph_path(recording.tensors[recording.attached[0]], None)
        failure = backward_fails(error, layout=layout, names=names, path=path)
        reason = None
        if not all(bool(tensor.detach().isfinite().all()) for tensor in recording.tensors):
            reason = "the output is not finite"  # a singular matrix in this layout alone, say
        elif RecordedCall.of(state.subject, point).gives_sparse(cotangents):
            # It can't go the way back through our own rearrangement.
            reason = "backward gives a sparse gradient"
        return VariationResult(
            covered=False,
            findings=(failure,) if reason is None else (),
            not_covered=() if reason is None else (f"{label}: {reason}",),
        )
    if same_rows(state, rows, seen):
        return VariationResult(covered=True)
    if custom_nodes(recording.tensors) or _same_outputs(state, tensors, recording.tensors):
        return _confirmed(state, varied, layout, names)
    # Such as as_strided: torch's own ops that are about memory, not about values.
    return VariationResult(
        covered=False, not_covered=(f"{label}: the outputs depend on the layout",)
    )


def _confirmed(
    state: CheckState, varied: PureFunction, layout: str, names: Sequence[str]
) -> VariationResult:
    """Ask finite differences whether the gradients for a layout are wrong."""
    trial = attempt(replace(state, varied="layout"), varied)
    if trial.status == "failed":
        told = as_layout_dependent(trial.findings, layout=layout, names=names)
        return VariationResult(covered=False, findings=tuple(told))
    if trial.status == "held":
        return VariationResult(covered=True)
    return VariationResult(covered=False, not_covered=(f"{_label(layout, names)}: {trial.reason}",))


def _label(layout: str, names: Sequence[str]) -> str:
    return f"{layout} {', '.join(f'`{name}`' for name in names[:3])}"


def _same_outputs(
    state: CheckState, expected: Sequence[torch.Tensor], found: Sequence[torch.Tensor]
) -> bool:
    allowed = state.context.precision.linearity
    sizes = [
        float(output.tensor.abs().nan_to_num(0.0, 0.0).max())
        for output in state.context.point.outputs
    ]
    apart = row_differences([t.detach() for t in expected], [t.detach() for t in found], sizes)
    return max(apart, default=0.0) <= allowed
