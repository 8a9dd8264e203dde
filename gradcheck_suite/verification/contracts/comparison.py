"""Compare gradients that should be equal up to rounding."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["difference", "row_differences"]

# Numbers this small lose digits when they are scaled.
_TINY = 2.0**40


def difference(one: torch.Tensor | None, two: torch.Tensor | None, *, scale: float = 0.0) -> float:
    """Return the largest difference relative to the largest entry of both, or to ``scale``.

    None counts as zeros. Infinite where only one is finite in some entry; entries that neither
    has finite are left out.
    """
    known = one if one is not None else two
    if known is None or known.numel() == 0:
        return 0.0
    first = torch.zeros_like(known) if one is None else one
    second = torch.zeros_like(known) if two is None else two
    first, second = first.double(), second.double()
    finite = torch.isfinite(first)
    if not torch.equal(finite, torch.isfinite(second)):
        return math.inf
    if not bool(finite.all()):
        first, second = first.where(finite, 0.0), second.where(finite, 0.0)
    apart = float((first - second).abs().max())
    if apart == 0.0:
        return 0.0
    size = max(float(first.abs().max()), float(second.abs().max()), scale)
    return apart / size if size > torch.finfo(known.dtype).tiny * _TINY else 0.0


def row_differences(
    row: Sequence[torch.Tensor | None],
    other: Sequence[torch.Tensor | None],
    scales: Sequence[float] | None = None,
) -> list[float]:
    """Return the difference of each gradient in two rows."""
    sizes = scales if scales is not None else [0.0] * len(row)
    return [
        difference(one, two, scale=size) for one, two, size in zip(row, other, sizes, strict=True)
    ]
