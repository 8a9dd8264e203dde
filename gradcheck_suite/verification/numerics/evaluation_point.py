"""Places where gradients are measured, and what the function gives there."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from gradcheck_suite.errors import UsageError
from gradcheck_suite.verification.target.pure_function import Output, PureFunction

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

__all__ = ["Point", "evaluate", "given_point", "match_outputs", "outputs_at", "shifted_point"]

_FEW_ROUNDINGS = 64.0
"""How many roundings (eps) apart the values with and without recording may be: fused kernels.
Chosen; where they are further apart, all evaluations record, which costs time alone."""


@dataclass(frozen=True, slots=True)
class Point:
    """A place in the space of the variables, and what the function gives there.

    Attributes:
        values: the variables' values.
        outputs: the outputs that are checked, by name.
        finite: for each output where it is finite, or None where all of it is.
        noise: for each output the difference between two calls; None where there is none.
        moved: whether this is a point beside the one that the user gave.
        recorded: whether function values have to be computed with gradients enabled because the
            function computes something else without.
    """

    values: tuple[torch.Tensor, ...]
    outputs: tuple[Output, ...]
    finite: tuple[torch.Tensor | None, ...]
    noise: tuple[torch.Tensor | None, ...]
    moved: bool = False
    recorded: bool = False


def given_point(subject: PureFunction, first: Sequence[Output], *, eps: float) -> Point:
    """Look at the point that the user gave.

    The function is called once more without recording gradients, which is how it will be called
    most. A function that then raises, or gives other values, is called with recording throughout.

    Args:
        subject: the function.
        first: its outputs that are to be checked, from a call that recorded gradients.
        eps: the machine epsilon of its values.
    """
    values = tuple(variable.value for variable in subject.variables)
    try:
        found = match_outputs(subject, first, evaluate(subject, values, recorded=False))
    except Exception:  # noqa: BLE001 - such as a function that calls autograd.grad itself
        found = None
    if found is not None and _agree(first, found, roundings=0.0, eps=eps):
        return _point(values, first, found)
    again = match_outputs(subject, first, evaluate(subject, values, recorded=True))
    reliable = _agree(first, again, roundings=0.0, eps=eps)
    if found is not None and (not reliable or _agree(first, found, _FEW_ROUNDINGS, eps=eps)):
        outputs = [
            replace(known, tensor=tensor) for known, tensor in zip(first, found, strict=True)
        ]
        return _point(values, outputs, found if reliable else again)
    return replace(_point(values, first, again), recorded=True)


def shifted_point(
    subject: PureFunction, point: Point, offsets: Sequence[torch.Tensor]
) -> Point | None:
    """Look at a point close by; None if the function can't be evaluated there as it can here."""
    values = tuple(value + offset for value, offset in zip(point.values, offsets, strict=True))
    try:
        found = [
            match_outputs(
                subject, point.outputs, evaluate(subject, values, recorded=point.recorded)
            )
            for _ in range(2)
        ]
    except Exception:  # noqa: BLE001 - the user's function may fail here in any way
        return None
    outputs = [
        replace(known, tensor=one) for known, one in zip(point.outputs, found[0], strict=True)
    ]
    moved = _point(values, outputs, found[1])
    if not _as_finite(moved, point):
        return None
    return replace(moved, moved=True, recorded=point.recorded)


def match_outputs(
    subject: PureFunction, known: Sequence[Output], produced: Sequence[Output]
) -> list[torch.Tensor]:
    """Find the known outputs among those of another call at the same point.

    Raises:
        UsageError: they are not there, or have another shape.
    """
    tensors = {output.name: output.tensor for output in produced}
    found = []
    for output in known:
        tensor = tensors.get(output.name)
        if tensor is None or tensor.shape != output.tensor.shape:
            now = "nothing" if tensor is None else f"a tensor of shape {tuple(tensor.shape)}"
            raise UsageError(
                f"{subject.title} returned other outputs on a second call with the same inputs and "
                f"random state: `{output.name}` of shape {tuple(output.tensor.shape)} at first, "
                f"{now} then; make it return the same outputs on every call"
            )
        found.append(tensor)
    return found


def outputs_at(
    subject: PureFunction, point: Point, places: Sequence[Sequence[torch.Tensor]]
) -> list[list[torch.Tensor]] | None:
    """Return the outputs of ``point`` at other values of the variables, computed as there.

    None if the function fails or returns other outputs at any of ``places``.
    """
    try:
        return [
            match_outputs(
                subject, point.outputs, evaluate(subject, values, recorded=point.recorded)
            )
            for values in places
        ]
    except Exception:  # noqa: BLE001 - the user's function may fail off the given point
        return None


def evaluate(
    subject: PureFunction,
    values: Sequence[torch.Tensor],
    *,
    recorded: bool,
    spare: Collection[int] = (),
) -> list[Output]:
    """Compute the function's values, with gradients recorded or not, and detach them.

    The function gets copies of the values, and its outputs are copied: it may write into its
    inputs, and may return the same buffer on every call. The values of the variables in ``spare``
    are needed no longer and handed over as they are.
    """
    handed = [
        variable.laid_out(value) if index in spare else variable.copy(value)
        for index, (variable, value) in enumerate(zip(subject.variables, values, strict=True))
    ]
    if recorded:
        with torch.enable_grad():
            outputs = subject([value.requires_grad_() for value in handed])
    else:
        with torch.no_grad():
            outputs = subject(handed)
    return [replace(output, tensor=output.tensor.detach().clone()) for output in outputs]


def _agree(
    first: Sequence[Output], second: Sequence[torch.Tensor], roundings: float, *, eps: float
) -> bool:
    for output, tensor in zip(first, second, strict=True):
        one = torch.nan_to_num(output.tensor.double())
        two = torch.nan_to_num(tensor.double())
        allowed = roundings * eps * float(one.abs().max())
        if not float((one - two).abs().max()) <= allowed:
            return False
    return True


def _point(
    values: tuple[torch.Tensor, ...], outputs: Sequence[Output], second: Sequence[torch.Tensor]
) -> Point:
    finite: list[torch.Tensor | None] = []
    noise: list[torch.Tensor | None] = []
    for output, again in zip(outputs, second, strict=True):
        known = torch.isfinite(output.tensor)
        finite.append(None if bool(known.all()) else known)
        one, two = output.tensor.double(), again.double()
        difference = (one - two).abs().where(known, 0.0)
        noise.append(difference if bool((difference != 0).any()) else None)
    return Point(
        values=values,
        outputs=tuple(outputs),
        finite=tuple(finite),
        noise=tuple(noise),
    )


def _as_finite(moved: Point, point: Point) -> bool:
    """Return whether the outputs are finite wherever they are at the other point."""
    for now, before in zip(moved.finite, point.finite, strict=True):
        if now is not None and (before is None or bool((before & ~now).any())):
            return False
    return True
