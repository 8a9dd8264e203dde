"""The same values in other places: transposed, strided, offset and expanded inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from gradcheck_suite.findings import Finding
from gradcheck_suite.verification.contracts.comparison import noise_floors, row_differences
from gradcheck_suite.verification.contracts.nodes import custom_nodes
from gradcheck_suite.verification.contracts.pullback import Recording
from gradcheck_suite.verification.custom_functions import graph_path
from gradcheck_suite.verification.one_line import one_line
from gradcheck_suite.verification.variations.arrangements import arranged, expandable, shared
from gradcheck_suite.verification.variations.told import backward_fails, told_as_layout
from gradcheck_suite.verification.variations.trial import attempt

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gradcheck_suite.verification.calling import Subject
    from gradcheck_suite.verification.contracts.pullback import Row
    from gradcheck_suite.verification.stages import Known

__all__ = ["LayoutResult", "rows_of", "same_rows", "try_layout"]

_FEW = 4


@dataclass(frozen=True, slots=True)
class LayoutResult:
    """Whether a layout was tried and held; findings and sentences on what was not."""

    covered: bool
    findings: tuple[Finding, ...] = ()
    not_covered: tuple[str, ...] = ()


def try_layout(known: Known, layout: str) -> LayoutResult:
    """Compare the gradients for inputs of one layout with those for contiguous ones.

    A difference counts once finite differences agree that the gradient for this layout is wrong:
    at ties a kernel may choose another element for another layout.
    """
    places = _places(known.subject, layout)
    if not places:
        return LayoutResult(covered=False)
    whole = _tried(known, layout, places)
    if whole.covered or len(places) == 1:
        return whole
    # One input by itself says which it is, and one that is refused does not hide the others.
    singles = [_tried(known, layout, [place]) for place in places[:_FEW]]
    findings = tuple(finding for single in singles for finding in single.findings)
    return LayoutResult(
        covered=any(single.covered for single in singles),
        findings=findings[:1] or whole.findings,
        not_covered=tuple(line for single in singles for line in single.not_covered)
        or whole.not_covered,
    )


def rows_of(recording: Recording, cotangents: Sequence[torch.Tensor]) -> list[Row]:
    """Return the gradients of each output by itself."""
    return [recording.pull({index: given.clone()}) for index, given in enumerate(cotangents)]


def same_rows(known: Known, one: Sequence[Row], two: Sequence[Row]) -> bool:
    """Say whether gradients agree as far as the precision of backward goes."""
    allowed = known.survey.precision.linearity
    unequal = max(known.survey.breaches.unequal.values(), default=0.0)
    point = known.survey.point
    floors = noise_floors(point, known.survey.cotangents(point, 0), known.survey.precision)
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


def _places(subject: Subject, layout: str) -> list[_Place]:
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


def _tried(known: Known, layout: str, places: Sequence[_Place]) -> LayoutResult:
    variables = {place.index for place in places if place.varies}
    constants = {place.index for place in places if not place.varies}
    names = [place.name for place in places]
    label = _label(layout, names)
    point = known.survey.point
    cotangents = known.survey.cotangents(point, 0)
    varied = known.subject.elsewhere(arrangement=arranged(layout, variables, constants))
    rows: Sequence[Row] = known.survey.gradients.rows
    tensors = known.survey.gradients.outputs
    if layout == "expanded":
        twin = known.subject.elsewhere(arrangement=shared(variables, constants))
        try:
            reference = Recording.of(twin, point)
            rows, tensors = rows_of(reference, cotangents), reference.tensors
        except Exception as error:  # noqa: BLE001 - whatever the user's function raises here
            return LayoutResult(
                covered=False,
                not_covered=(f"{label}: values that repeat are refused, {one_line(error)}",),
            )
    try:
        recording = Recording.of(varied, point)
    except Exception as error:  # noqa: BLE001 - as above
        return LayoutResult(covered=False, not_covered=(f"{label}: raises {one_line(error)}",))
    try:
        seen = rows_of(recording, cotangents)
    except Exception as error:  # noqa: BLE001 - as above
        path = graph_path(recording.tensors[recording.attached[0]], None)
        failure = backward_fails(error, layout=layout, names=names, path=path)
        # A sparse gradient can't go the way back through our own rearrangement.
        sparse = Recording.of(known.subject, point).gives_sparse(cotangents)
        return LayoutResult(
            covered=False,
            findings=() if sparse else (failure,),
            not_covered=(f"{label}: backward gives a sparse gradient",) if sparse else (),
        )
    if same_rows(known, rows, seen):
        return LayoutResult(covered=True)
    if custom_nodes(recording.tensors) or _same_outputs(known, tensors, recording.tensors):
        return _confirmed(known, varied, layout, names)
    # Such as as_strided: torch's own ops that are about memory, not about values.
    return LayoutResult(covered=False, not_covered=(f"{label}: the outputs depend on the layout",))


def _confirmed(known: Known, varied: Subject, layout: str, names: Sequence[str]) -> LayoutResult:
    """Ask finite differences whether the gradients for a layout are wrong."""
    trial = attempt(known, varied)
    if trial.status == "failed":
        told = told_as_layout(trial.findings, layout=layout, names=names)
        return LayoutResult(covered=False, findings=tuple(told))
    if trial.status == "held":
        return LayoutResult(covered=True)
    return LayoutResult(covered=False, not_covered=(f"{_label(layout, names)}: {trial.reason}",))


def _label(layout: str, names: Sequence[str]) -> str:
    return f"{layout} {', '.join(f'`{name}`' for name in names[:3])}"


def _same_outputs(
    known: Known, expected: Sequence[torch.Tensor], found: Sequence[torch.Tensor]
) -> bool:
    allowed = known.survey.precision.linearity
    sizes = [
        float(output.tensor.abs().nan_to_num(0.0, 0.0).max())
        for output in known.survey.point.outputs
    ]
    apart = row_differences([t.detach() for t in expected], [t.detach() for t in found], sizes)
    return max(apart, default=0.0) <= allowed
