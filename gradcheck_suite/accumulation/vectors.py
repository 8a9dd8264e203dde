"""Gradients of many parameters as one vector, in float64: norms, distances, and what mixes them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

__all__ = ["Gradients", "Mix", "distances", "is_finite", "mix_of", "norm", "norms", "without"]

Gradients: TypeAlias = "Mapping[int, Tensor]"
"""Gradients by the position of their parameter; one that is not there is zero."""

_WELL_APART = 1e-9
"""Below this ratio of the least to the greatest eigenvalue of their products, gradients count as
linearly dependent: the products of float32 gradients are no better known."""


@dataclass(frozen=True, slots=True)
class Mix:
    """How a gradient is made of others.

    Attributes:
        weights: how much of each is in it.
        rest: the part of its norm that no weights explain.
        is_certain: whether other weights would not do as well.
    """

    weights: tuple[float, ...]
    rest: float
    is_certain: bool


def norms(gradients: Gradients) -> dict[int, float]:
    """Return the norm of each."""
    return {position: _flat(each).norm().item() for position, each in gradients.items()}


def norm(gradients: Gradients) -> float:
    """Return the norm of all of them together."""
    return math.hypot(*norms(gradients).values())


def is_finite(gradients: Gradients) -> bool:
    """Return whether there is no NaN and no infinity."""
    return math.isfinite(norm(gradients))


def distances(left: Gradients, right: Gradients) -> dict[int, float]:
    """Return the norm of the difference, for each parameter of either."""
    return norms(without(left, right))


def without(left: Gradients, right: Gradients, times: float = 1.0) -> dict[int, Tensor]:
    """Return ``left - times * right``."""
    differences = {}
    for position in sorted({*left, *right}):
        a, b = left.get(position), right.get(position)
        if a is None:
            assert b is not None
            differences[position] = -times * _flat(b)
        else:
            differences[position] = _flat(a) - (0.0 if b is None else times * _flat(b))
    return differences


def mix_of(gradient: Gradients, parts: Sequence[Gradients]) -> Mix:
    """Return the weights of ``parts`` whose sum comes closest to ``gradient``."""
    products = torch.tensor([[_inner(a, b) for b in parts] for a in parts], dtype=torch.float64)
    sides = torch.tensor([_inner(part, gradient) for part in parts], dtype=torch.float64)
    weights = (torch.linalg.pinv(products, rcond=_WELL_APART, hermitian=True) @ sides).tolist()
    rest: Gradients = gradient
    for weight, part in zip(weights, parts, strict=True):
        rest = without(rest, part, weight)
    values = torch.linalg.eigvalsh(products)
    is_certain = bool(values[0] > _WELL_APART * values[-1])
    return Mix(tuple(weights), norm(rest) / max(norm(gradient), 1e-300), is_certain)


def _inner(left: Gradients, right: Gradients) -> float:
    return math.fsum(
        torch.dot(_flat(left[position]), _flat(right[position])).item()
        for position in left.keys() & right.keys()
    )


def _flat(tensor: Tensor) -> Tensor:
    whole = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    return whole.detach().to(device="cpu", dtype=torch.float64).reshape(-1)
