"""Whether a function that is given float64 computes in float32 all the same.

``x.float()`` in forward, NumPy or an extension that knows float32 alone: outputs are float64 by
type and have the digits of float32. What differences can tell of such a function is what they can
tell of one in float32.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from gradcheck_suite.verification.directions import generator_for, scales_of, spread_signs
from gradcheck_suite.verification.points import evaluate, match_outputs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gradcheck_suite.verification.calling import Output, Subject

__all__ = ["computes_in_float32"]

_STREAM = 61
_PLACES = 3
_OFF = 2.0**-5
# So many numbers use all 24 digits of float32: less might be whole numbers or a coarser type.
_FEWEST = 4


def computes_in_float32(subject: Subject, outputs: Sequence[Output], seed: int) -> bool:
    """Say whether every float64 output holds what float32 can hold, here and around.

    A random float64 number is one of float32 by chance once in half a billion draws.
    """
    tensors = [output.tensor for output in outputs]
    if not all(tensor.dtype is torch.float64 and _fits(tensor) for tensor in tensors):
        return False
    full = sum(map(_full_numbers, tensors))
    scales = scales_of([variable.value for variable in subject.variables])
    try:
        for place in range(_PLACES):
            values = [
                variable.value
                + _OFF
                * scale
                * spread_signs(variable.value, generator_for(seed, _STREAM, place, i))
                for i, (variable, scale) in enumerate(zip(subject.variables, scales, strict=True))
            ]
            found = match_outputs(subject, outputs, evaluate(subject, values, recorded=False))
            if not all(map(_fits, found)):
                return False
            full += sum(map(_full_numbers, found))
    except Exception:  # noqa: BLE001 - the user's function may fail off the given point
        return False
    return full >= _FEWEST


def _fits(values: torch.Tensor) -> bool:
    finite = values[torch.isfinite(values)]
    return torch.equal(finite.float().double(), finite)


def _full_numbers(values: torch.Tensor) -> int:
    """Count the numbers that need the last digit of float32."""
    return int((values.float().contiguous().view(torch.int32) & 1).sum())
