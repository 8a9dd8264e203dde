"""Does backward cope with an output that nobody used?

torch then hands it None, or zeros unless the Function asked for None with
``ctx.set_materialize_grads(False)``. Both must give what explicit zeros give.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from gradcheck_suite.verification.contracts.comparison import added, noise_floors, row_differences
from gradcheck_suite.verification.contracts.pullback import Recording
from gradcheck_suite.verification.contracts.pulling import Breach
from gradcheck_suite.verification.one_line import one_line
from gradcheck_suite.verification.representations import dense

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gradcheck_suite.verification.calling import Subject
    from gradcheck_suite.verification.contracts.pullback import Row
    from gradcheck_suite.verification.contracts.pulling import Probed
    from gradcheck_suite.verification.options import Precision
    from gradcheck_suite.verification.points import Point
    from gradcheck_suite.verification.probes import Gradients

__all__ = ["probe_all_undefined", "probe_undefined", "undefined_outputs"]


def undefined_outputs(
    subject: Subject,
    point: Point,
    cotangents: Sequence[torch.Tensor],
    gradients: Gradients,
    *,
    precision: Precision,
) -> dict[int, float]:
    """Compare the gradients of each output by itself with those for zeros in place of the others.

    Where they add up to the gradients of all outputs together, there is nothing to look for.
    """
    if sum(gradients.attached) < 2:  # noqa: PLR2004 - several outputs
        return {}
    try:
        recording = Recording.of(subject, point)
        together = recording.pull({index: given.clone() for index, given in enumerate(cotangents)})
        summed = [added(column) for column in zip(*gradients.rows, strict=True)]
        floors = noise_floors(point, cotangents, precision)
        total = [sum(column) for column in zip(*floors, strict=True)]
        if max(row_differences(together, summed, total)) <= precision.linearity:
            return {}
        found = {}
        for output in recording.attached:
            given = {
                index: cotangents[index] * float(index == output) for index in recording.attached
            }
            apart = max(
                row_differences(recording.pull(given), gradients.rows[output], floors[output])
            )
            if apart > precision.linearity:
                found[output] = apart
    except Exception:  # noqa: BLE001 - such as a backward that fails on explicit zeros
        return {}
    return {output: apart for output, apart in found.items() if math.isfinite(apart)}


def probe_undefined(probed: Probed) -> Iterator[Breach]:
    """Leave out each output in turn, where there are several."""
    if len(probed.given) < 2:  # noqa: PLR2004 - several
        return
    for index, given in probed.given.items():
        zeros = {**probed.given, index: torch.zeros_like(given)}
        expected = probed.pullback.pull(zeros)
        others = {other: it for other, it in probed.given.items() if other != index}
        try:
            seen = probed.pullback.pull(others)
        except Exception as error:  # noqa: BLE001 - whatever the user's backward raises
            yield Breach("undefined", "left out", index, error=one_line(error))
            continue
        apart = probed.apart(expected, seen)
        if apart > probed.allowed:
            yield Breach("undefined", "left out", index, apart)


def probe_all_undefined(
    recording: Recording, cotangents: Sequence[torch.Tensor]
) -> Iterator[Breach]:
    """Hand each output by itself an undefined gradient: nothing, or zeros, must come out."""
    recording.make_ready()
    for index in recording.attached:
        with torch.enable_grad():
            undefined: torch.Tensor = _Undefined.apply(recording.tensors[index])  # type: ignore[no-untyped-call]
        try:
            row: Row = torch.autograd.grad(
                undefined,
                recording.leaves,
                torch.zeros_like(cotangents[index]),
                retain_graph=True,
                allow_unused=True,
            )
        except Exception as error:  # noqa: BLE001 - whatever the user's backward raises
            yield Breach("undefined", "undefined", index, error=one_line(error))
            continue
        if any(part is not None and _moves(part) for part in row):
            yield Breach("undefined", "undefined", index, 1.0)


class _Undefined(torch.autograd.Function):
    """Hands on what it is given, and no gradient."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:  # noqa: ARG004 - torch's signature
        """Return the tensor as it is."""
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> None:  # noqa: ARG004 - torch's signature
        """Return an undefined gradient."""
        return


def _moves(part: torch.Tensor) -> bool:
    """Say whether a gradient of nothing is something; NaN is zero times infinity."""
    values = dense(part)
    return bool(((values != 0) & torch.isfinite(values)).any())
