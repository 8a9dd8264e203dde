"""Return whether a function computes with fewer digits than what it is given and gives.

``x.float()`` in forward, NumPy or an extension that knows float32 alone: outputs are float64 by
type and have the digits of float32. What differences can tell of such a function is what they can
tell of one in float32. The same goes where only a part is computed so, such as the variance of a
normalisation or the softmax of a router: along steps that float32 does not see this part stays as
it is, and what differences show is the derivative of the rest.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch

from gradcheck_suite._torch_compat import noting_operators
from gradcheck_suite.verification.numerics.directions import generator_for, random_signs, scales_of
from gradcheck_suite.verification.numerics.evaluation_point import evaluate, match_outputs

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gradcheck_suite.verification.target.pure_function import Output, PureFunction

__all__ = ["computes_in_float32", "narrower_types"]

_STREAM = 61
"""Stream of the moved points; any number does that no other stream uses."""
_PLACES = 3
"""At how many points around the given one outputs are looked at, besides: one alone may take a
branch. A bound on cost: one evaluation each. It numbers one further point."""
_OFF = 2.0**-5
"""How far these points lie, in units of the input's scale: 3 % change every digit of float32 and
leave the function what it is. Chosen."""
_FEWEST = 4
"""How many numbers have to use all 24 digits of float32: less might be whole numbers or a coarser
type. Chosen; half of all random numbers do."""


def narrower_types(
    subject: PureFunction, types: Iterable[torch.dtype], seed: int
) -> set[torch.dtype]:
    """Return the types of fewer digits in which something that depends on the variables is held.

    The graph of the first call tells of most. What is detached, and what custom Functions compute,
    is seen by watching two calls at different points: what differs depends on the variables.

    Args:
        subject: has been called once.
        types: those of variables and outputs.
        seed: seeds the second point.
    """
    finest = min(torch.finfo(kind).eps for kind in types)
    found = {kind.to_real() for kind in subject.types_on_the_way if _eps(kind) > finest}
    values = [variable.value for variable in subject.variables]
    here = _narrowed(subject, values, finest)
    if any(kind not in found for kind, _ in here):
        there = _narrowed(subject, _beside(subject, seed, _PLACES), finest)
        found |= {kind for (kind, one), (_, two) in zip(here, there, strict=False) if one != two}
    return found


def _narrowed(
    subject: PureFunction, values: Sequence[torch.Tensor], finest: float
) -> list[tuple[torch.dtype, tuple[float, float]]]:
    """Call a function; return type and sums of each result of fewer digits than its arguments."""
    found: list[tuple[torch.dtype, tuple[float, float]]] = []

    def note(_: object, given: Sequence[Any], result: object) -> None:
        if not isinstance(result, torch.Tensor) or _eps(result.dtype) <= finest:
            return
        least = min(
            (_eps(it.dtype) or 1.0 for it in given if isinstance(it, torch.Tensor)), default=1.0
        )
        if least < _eps(result.dtype):
            kept = torch.view_as_real(result) if result.is_complex() else result
            kept = kept.detach().double()
            found.append((result.dtype.to_real(), (float(kept.sum()), float(kept.square().sum()))))

    # What it raises here, it raises again where that is told.
    with contextlib.suppress(Exception), torch.enable_grad(), noting_operators(note):
        subject(subject.leaves(values))
    return found


def _eps(kind: torch.dtype) -> float:
    """Return the machine epsilon of a type, zero for whole numbers."""
    return torch.finfo(kind).eps if kind.is_floating_point or kind.is_complex else 0.0


def computes_in_float32(subject: PureFunction, outputs: Sequence[Output], seed: int) -> bool:
    """Return whether every float64 output holds what float32 can hold, here and around.

    A random float64 number is one of float32 by chance once in half a billion draws.
    """
    tensors = [output.tensor for output in outputs]
    if not all(tensor.dtype is torch.float64 and _fits(tensor) for tensor in tensors):
        return False
    full = sum(map(_full_numbers, tensors))
    try:
        for place in range(_PLACES):
            values = _beside(subject, seed, place)
            found = match_outputs(subject, outputs, evaluate(subject, values, recorded=False))
            if not all(map(_fits, found)):
                return False
            full += sum(map(_full_numbers, found))
    except Exception:  # noqa: BLE001 - the user's function may fail off the given point
        return False
    return full >= _FEWEST


def _beside(subject: PureFunction, seed: int, place: int) -> list[torch.Tensor]:
    """Move all variables a little, another way for each place."""
    scales = scales_of([variable.value for variable in subject.variables])
    return [
        variable.value
        + _OFF * scale * random_signs(variable.value, generator_for(seed, _STREAM, place, i))
        for i, (variable, scale) in enumerate(zip(subject.variables, scales, strict=True))
    ]


def _fits(values: torch.Tensor) -> bool:
    finite = values[torch.isfinite(values)]
    return torch.equal(finite.float().double(), finite)


def _full_numbers(values: torch.Tensor) -> int:
    """Count the numbers that need the last digit of float32."""
    return int((values.float().contiguous().view(torch.int32) & 1).sum())
