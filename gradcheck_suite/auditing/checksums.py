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

__all__ = ["Fingerprint", "fingerprint", "same_content"]

BLOCK = 509
"""The number of 64-bit words in a row of sums: a prime, for the reason given above."""

Fingerprint: TypeAlias = "tuple[Tensor, ...]"
"""The sums of rows, the sums of columns, and the words that fill no row; or those words alone."""

_WORD = 8
# Contents are compared as integers: a NaN differs from itself.
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


def _is_readable(tensor: Tensor) -> bool:
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
        The sums and the words that fill no row, on the tensor's own device, so that nothing waits
        for a GPU; None where the contents can't be read (sparse, meta, quantised, nested, or
        freed storage).
    """
    words = _words_of(tensor)
    if words is None:
        return None
    rows, rest = words
    if rows is None:
        return (rest.clone(),)
    return rows.sum(1), rows.sum(0), rest.clone()


def same_content(before: Fingerprint, tensor: Tensor) -> bool:
    """Return whether ``tensor`` still has the fingerprint that was taken ``before``.

    True where the contents can no longer be read: nothing is known to have changed.
    """
    words = _words_of(tensor)
    if words is None:
        return True
    rows, rest = words
    if not _equal(before[-1], rest):
        return False
    if rows is None:
        return len(before) == 1
    return len(before) > 1 and _equal(before[0], rows.sum(1)) and _equal(before[1], rows.sum(0))


def _equal(old: Tensor, new: Tensor) -> bool:
    return old.dtype == new.dtype and torch.equal(old, new)


def _words_of(tensor: Tensor) -> tuple[Tensor | None, Tensor] | None:
    """Return the memory of ``tensor`` as rows of words, None if it fills no row, and the rest."""
    if not _is_readable(tensor):
        return None
    flat = _memory_of(tensor.detach() if tensor.requires_grad else tensor)
    size = flat.element_size()
    count = flat.numel() * size
    if count and flat.data_ptr() == 0:
        return None
    blocks = count // (_WORD * BLOCK)
    if not blocks:
        return None, flat.view(_INTEGERS.get(size, torch.int64))
    if count % _WORD == 0 and flat.storage_offset() * size % _WORD == 0:
        words = flat.view(torch.int64)
        rest = words[blocks * BLOCK :]
    else:
        raw = flat.view(torch.uint8)
        if raw.storage_offset() % _WORD:
            raw = raw.clone()
        words = raw[: blocks * BLOCK * _WORD].view(torch.int64)
        rest = raw[blocks * BLOCK * _WORD :]
    return words.as_strided((blocks, BLOCK), (BLOCK, 1)), rest


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
