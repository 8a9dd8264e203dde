"""Work out the figures of gradients: norms, and how many elements are not zero."""

from __future__ import annotations

import math
from typing import TypeAlias

import torch

__all__ = ["NormAndCount", "measure_any", "measure_one", "measure_rows", "queue_rows"]

NormAndCount: TypeAlias = "tuple[float, int]"
"""Norm, and number of elements that are not zero."""

_WIDER = {torch.float16: torch.float32, torch.bfloat16: torch.float32}
_WIDE = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.complex64: torch.complex128,
}
_HAVE_DOUBLE = frozenset({"cpu", "cuda"})
_EXACT_IN_FLOAT = 1 << 24
"""Counting up to here in float32 is exact."""
_COUNTED_BY_THEMSELVES = frozenset({torch.float32, torch.float64})
_ADDED = 128
_TINY = 1e-15
"""Squares of what is smaller lose digits in float32."""


def measure_rows(rows: torch.Tensor) -> list[NormAndCount]:
    """Return the figures of each row of a matrix on the CPU, which may be overwritten."""
    measured = torch.linalg.vector_norm(rows, dim=1, dtype=_WIDER.get(rows.dtype))
    norms: list[float] = measured.tolist()
    are_usual = all(map(_is_usual, norms))
    counts = [int(count) for count in _nonzero(rows, may_write=are_usual).tolist()]
    if not are_usual:
        norms = [
            norm if _is_usual(norm) or not (norm or count) else _rescued(row)
            for norm, count, row in zip(norms, counts, rows, strict=True)
        ]
    return list(zip(norms, counts, strict=True))


def measure_one(values: torch.Tensor, gradient: torch.Tensor) -> NormAndCount:
    """Return the figures of one gradient on the CPU; ``values`` are its numbers in a row."""
    norm, nonzero = _norm_of_many(values), _nonzero_of_many(values)
    if not _is_usual(norm) and (norm or nonzero):
        norm = _rescued(gradient)
    return norm, nonzero


def measure_any(values: torch.Tensor) -> NormAndCount:
    """Return the figures of one gradient of any kind on the CPU."""
    norm = torch.linalg.vector_norm(values, dtype=_WIDER.get(values.dtype)).item()
    return norm if _is_usual(norm) else _rescued(values), int(torch.count_nonzero(values).item())


def queue_rows(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the norms and counts of each row of a matrix, still on its device."""
    wider = _WIDE if rows.device.type in _HAVE_DOUBLE else _WIDER
    norms = torch.linalg.vector_norm(rows, dim=1, dtype=wider.get(rows.dtype))
    return norms, torch.count_nonzero(rows, dim=1)


def _is_usual(norm: float) -> bool:
    return _TINY < norm < math.inf


def _nonzero(rows: torch.Tensor, *, may_write: bool) -> torch.Tensor:
    """Count in each row the numbers that are not zero; rows that may be written are written."""
    if rows.is_complex() or rows.shape[1] > _EXACT_IN_FLOAT:
        return torch.count_nonzero(rows, dim=1)
    if may_write and rows.dtype in _COUNTED_BY_THEMSELVES:
        return rows.ne_(0).sum(dim=1)
    marks = torch.empty(rows.shape, dtype=torch.float32, device=rows.device)
    return torch.ne(rows, 0, out=marks).sum(dim=1)


def _norm_of_many(values: torch.Tensor) -> float:
    """Return the norm of a tensor by itself."""
    if values.dtype in _COUNTED_BY_THEMSELVES:
        # Quicker than a norm, as it leaves more to the processor at a time.
        return math.sqrt(torch.dot(values, values).item())
    return float(torch.linalg.vector_norm(values, dtype=_WIDER.get(values.dtype)).item())


def _nonzero_of_many(values: torch.Tensor) -> int:
    """Count the numbers that are not zero of a tensor by itself."""
    if values.is_complex() or values.numel() % (8 * _ADDED):
        return int(torch.count_nonzero(values).item())
    # Bytes that are 0 or 1 are added up eight at a time, as many as a byte can count.
    eights = values.to(torch.bool).view(torch.int64).view(_ADDED, -1)
    return int(eights.sum(dim=0).view(torch.uint8).sum().item())


def _rescued(values: torch.Tensor) -> float:
    """Return the norm: NaN or infinite only where ``values`` are, zero only where all are.

    The sum of squares of finite numbers overflows and underflows sooner than they do, but not in
    double precision, and there only where they are scaled first. That is slow on CPUs, where a
    look at the first result costs nothing instead.
    """
    wide = _WIDE.get(values.dtype)
    if wide is not None:
        return float(torch.linalg.vector_norm(values, dtype=wide).item())
    largest = torch.linalg.vector_norm(values, math.inf)
    if not 0.0 < largest.item() < math.inf:
        return float(largest.item())
    return float((largest * torch.linalg.vector_norm(values / largest)).item())
