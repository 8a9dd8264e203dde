"""Fingerprints of tensor contents that notice any edit and cost little.

The memory is read as rows of 509 words of 64 bits, and the sums of the rows and of the columns are
kept: integer addition is exact, so a change of one bit in one element always shows, and so do two
swapped words, which share a row or a column but not both. A prime row length keeps these rows out
of step with the tensor's own. One sum over the whole tensor, and XOR (``torch.hash_tensor``), miss
permutations and negations of an even count.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeAlias

import torch

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Fingerprint", "can_fingerprint", "fingerprint", "same_content"]

BLOCK = 509
"""The number of 64-bit words in a row of sums: a prime, for the reason given above."""

Fingerprint: TypeAlias = "tuple[Tensor, Tensor]"

_WORD = 8


def can_fingerprint(tensor: Tensor) -> bool:
    """Return whether the contents of this tensor lie in plain memory that can be summed."""
    return (
        tensor.layout is torch.strided
        and tensor.device.type != "meta"
        and not tensor.is_quantized
        and not tensor.is_nested
    )


def fingerprint(tensor: Tensor) -> Fingerprint | None:
    """Sum up the bits of ``tensor``, of any strided shape, dtype and device.

    Returns:
        The sums and the bytes that fill no row, both on the tensor's own device, so that
        nothing waits for a GPU; None where the contents can't be read (sparse, meta, quantised,
        nested, or freed storage).
    """
    if not can_fingerprint(tensor):
        return None
    flat = _memory_of(tensor.detach())
    count = flat.numel() * flat.element_size()
    if count and flat.untyped_storage().nbytes() == 0:
        return None
    raw = flat.view(torch.uint8)
    whole = count // _WORD * _WORD
    if whole < _WORD * BLOCK:
        return raw.new_empty(0), raw.clone()
    if raw.storage_offset() % _WORD:
        raw = raw.clone()
    words = raw[:whole].view(torch.int64)
    blocks = words.numel() // BLOCK
    rows = words[: blocks * BLOCK].view(blocks, BLOCK)
    return torch.cat([rows.sum(1), rows.sum(0)]), raw[blocks * BLOCK * _WORD :].clone()


def same_content(before: Fingerprint, tensor: Tensor) -> bool:
    """Return whether ``tensor`` still has the fingerprint that was taken ``before``.

    True where the contents can no longer be read: nothing is known to have changed.
    """
    after = fingerprint(tensor)
    if after is None:
        return True
    return all(
        old.shape == new.shape and torch.equal(old, new)
        for old, new in zip(before, after, strict=True)
    )


def _memory_of(tensor: Tensor) -> Tensor:
    """Return a one-dimensional view of the memory that ``tensor`` covers, or a copy of it."""
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    if tensor.is_contiguous():
        return tensor.view(-1)
    sizes_and_strides = tuple(zip(tensor.shape, tensor.stride(), strict=True))
    span = 1 + sum((size - 1) * stride for size, stride in sizes_and_strides)
    distinct = math.prod(size for size, stride in sizes_and_strides if stride)
    if span == distinct:
        # A transposed or expanded tensor without holes: every element lies in the span.
        return tensor.as_strided((span,), (1,))
    return tensor.contiguous().view(-1)
