"""Compare gradients that should be equal up to rounding."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from gradcheck_suite.verification.numerics.directions import scales_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gradcheck_suite.verification.numerics.evaluation_point import Point
    from gradcheck_suite.verification.numerics.precision import Precision

__all__ = ["REVERSED_AND_SCALED", "added", "difference", "noise_floors", "row_differences"]

REVERSED_AND_SCALED = -1024.0
"""What an incoming gradient is multiplied by, to see whether backward is linear.

A power of two scales floating-point numbers exactly; this one is large enough to reach a clamp at a
usual size, and negative to find a backward that treats the signs differently.
"""

_TINY = 2.0**40
"""Gradients below this many smallest normal numbers count as equal: numbers this small lose digits
when they are scaled. Chosen: more than the 24 bits of float32 and the 10 that scaling takes."""


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
    exact = torch.complex128 if known.is_complex() else torch.float64
    first, second = first.to(exact), second.to(exact)
    apart = float((first - second).abs().max())
    if not math.isfinite(apart):
        finite = torch.isfinite(first)
        if not torch.equal(finite, torch.isfinite(second)):
            return math.inf
        first, second = first.where(finite, 0.0), second.where(finite, 0.0)
        apart = float((first - second).abs().max())
    if apart == 0.0:
        return 0.0
    size = max(float(first.abs().max()), float(second.abs().max()), scale)
    return apart / size if size > torch.finfo(known.dtype).tiny * _TINY else 0.0


def added(parts: Sequence[torch.Tensor | None]) -> torch.Tensor | None:
    """Return the sum of gradients, in which None counts as zeros."""
    known = [part for part in parts if part is not None]
    return torch.stack(known).sum(0) if known else None


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


def noise_floors(
    point: Point, cotangents: Sequence[torch.Tensor], precision: Precision
) -> list[list[float]]:
    """Return, for each output and variable, how large a gradient must be to be compared.

    A gradient that vanishes, such as that of a bias before batch norm, is all rounding. What counts
    as small follows from the sizes of output, cotangent and variable: some hundred roundings of the
    output, per unit of the variable.
    """
    share = _ROUNDINGS * precision.eps / precision.linearity
    scales = scales_of(point.values)
    floors = []
    for output, finite, given in zip(point.outputs, point.finite, cotangents, strict=True):
        values = output.tensor if finite is None else output.tensor.where(finite, 0.0)
        magnitude = float(torch.linalg.vector_norm(values.double() * given.double()))
        floors.append([share * magnitude / scale if scale > 0.0 else 0.0 for scale in scales])
    return floors


_ROUNDINGS = 1024.0
"""How many roundings (eps) of the output a difference of gradients has to be beyond, per unit of
the variable. Chosen: as many as the sum of a million terms takes, as they grow with the root of
their number."""
