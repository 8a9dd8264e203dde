"""Does backward cope with an output that nobody used?

torch then hands it None, or zeros unless the Function asked for None with
``ctx.set_materialize_grads(False)``. Both must give what explicit zeros give.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from gradcheck_suite.verification.contracts.pulling import Breach
from gradcheck_suite.verification.representations import dense

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gradcheck_suite.verification.contracts.pullback import Recording, Row
    from gradcheck_suite.verification.contracts.pulling import Probed

__all__ = ["probe_all_undefined", "probe_undefined"]

_LONGEST = 100


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
            yield Breach("undefined", "left out", index, error=_text(error))
            continue
        apart = probed.apart(expected, seen)
        if apart > probed.allowed:
            yield Breach("undefined", "left out", index, apart)


def probe_all_undefined(
    recording: Recording, cotangents: Sequence[torch.Tensor]
) -> Iterator[Breach]:
    """Hand each output by itself an undefined gradient: nothing, or zeros, must come out."""
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
            yield Breach("undefined", "undefined", index, error=_text(error))
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
    return bool((dense(part) != 0).any())


def _text(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:_LONGEST]
