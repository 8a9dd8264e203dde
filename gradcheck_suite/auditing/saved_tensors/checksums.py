"""Fingerprints of tensor contents that notice any edit and cost little.

Of little memory a copy is kept. More is read as rows of 2,039 words of 64 bits, and the sums of the
rows and of the columns are kept: integer addition is exact, so a change of one bit in one
element always shows, and so do two swapped words, which share a row or a column but not both. A
prime row length keeps these rows out of step with the tensor's own. One sum over the whole tensor,
and XOR (``torch.hash_tensor``), miss permutations and negations of an even count.

Where memory is read again and again, the sums of columns alone are kept, which takes two thirds of
the time: they miss what moves by a multiple of the row's length, so that each time has another.

On an accelerator, sums and comparisons are operators like any other, queued on the device. What
stops the queue is to read an answer: ``whether_same`` leaves it on the device, for whoever can wait
until many are read at once (``read_answers``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import torch

from gradcheck_suite._runtime.memory import (
    compare_memory,
    copy_of_memory,
    extent_of,
    has_room,
    is_readable,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import Tensor

__all__ = [
    "Columns",
    "Fingerprint",
    "columns_of",
    "fingerprint",
    "in_host_memory",
    "read_answers",
    "same_columns",
    "same_content",
    "same_fingerprint",
    "whether_same",
]

READS_MEMORY = True
"""Whether the CPU's memory is read where it lies. Where not, its tensors are summed up and compared
by operators, as those of any other device: so that tests go that way where there is none."""

BLOCK = 2039
"""The number of 64-bit words in a row of sums: a prime, for the reason given above. From 128 kB to
25 MB, adding up both ways takes least with such rows; with rows of 509 words, up to 1.7 times."""

WIDTHS = (2039, 1777, 1511)
"""The lengths of rows whose columns alone are summed, in turn: primes again, so that what one
misses, a move by a multiple of it, the next sees."""

SMALL = 16_384
"""So many bytes are copied in any case: that takes a microsecond, and summing them takes ten."""

COPIED = 131_072
"""So many are copied while there is room. Memory that the last op has made, or the next will use,
is copied and compared in 5 microseconds and 160 for each MB; summing up columns twice takes 60 and
80 for each MB."""


class Gathered(bytes):
    """A copy of elements that do not lie side by side in memory."""

    __slots__ = ()


class Columns(NamedTuple):
    """The sums of columns of the CPU's memory.

    Attributes:
        words: this memory, as rows, where that may be kept; it is not part of what is compared.
        sums: the sums.
        last: the bytes that fill no row.
    """

    words: Tensor | None
    sums: bytes
    last: bytes


Fingerprint: TypeAlias = "bytes | Columns | tuple[bytes | Tensor, ...]"
"""A copy of little memory; else the sums of columns; else the sums of rows, the sums of columns,
and the words that fill no row, or those words alone: as bytes of the CPU's memory, as tensors on
any other device."""

_WORD = 8
"""Bytes of an ``int64``, the widest integer that torch adds up."""

_AT_ONCE = 32
"""Rows, of 16 kB, that are summed both ways before the next are read. Half a megabyte stays in the
cache between the two sums: 2 MB take 0.8 of the time and 16 MB take 0.6."""

_MOST_AT_ONCE = 96
"""Rows, of 1.5 MB, up to which memory is read as a whole: what is gained begins at about 2 MB."""

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
"""By the bytes of an element, what contents are compared as: a NaN differs from itself."""


def in_host_memory(tensor: Tensor) -> bool:
    """Return whether the contents of a tensor can be read without an operator."""
    return READS_MEMORY and tensor.is_cpu


def fingerprint(tensor: Tensor, most_copied: int = SMALL) -> Fingerprint | None:
    """Copy or sum up the bits of ``tensor``, of any strided shape, dtype and device.

    Args:
        tensor: whose contents are to be known again.
        most_copied: up to how many bytes a copy is kept.

    Returns:
        The copy, or the sums and the words that fill no row, on the tensor's own device, so that
        nothing waits for a GPU; None where the contents can't be read (sparse, meta, quantised,
        nested, or freed storage).
    """
    if not _can_be_summed(tensor):
        return None
    copied = _copy_of(tensor, most_copied)
    if copied is not None:
        return copied
    return _sums_of(tensor)


def columns_of(tensor: Tensor, width: int, *, keep: bool) -> Columns | None:
    """Sum up the columns of the memory of ``tensor``, read as rows of ``width`` words.

    Returns:
        The sums; None where the memory can't be read, is not the CPU's, fills no row, or does not
        lie in one piece. ``keep`` says whether they may keep the memory, too.
    """
    if not (in_host_memory(tensor) and _can_be_summed(tensor)):
        return None
    words, last = _rows_in_place(tensor, width, odd=True) or (None, b"")
    if words is None:
        return None
    sums = words.sum(0)
    return Columns(words if keep else None, copy_of_memory(sums.data_ptr(), _WORD * width), last)


def same_columns(before: Columns, words: Tensor) -> bool:
    """Return whether the memory at ``words``, which ``before`` has kept, still has these sums.

    True where it is no longer there.
    """
    if not has_room(words, words.nbytes + len(before.last)):
        return True
    sums = words.sum(0)
    last = words.data_ptr() + words.nbytes
    return (
        compare_memory(before.sums, sums.data_ptr(), len(before.sums)) == 0
        and compare_memory(before.last, last, len(before.last)) == 0
    )


def same_content(before: Fingerprint, tensor: Tensor) -> bool:
    """Return whether ``tensor`` still has the fingerprint that was taken ``before``.

    True where the contents can no longer be read: nothing is known to have changed.
    """
    return bool(whether_same(before, tensor))


def whether_same(before: Fingerprint, tensor: Tensor) -> bool | Tensor:
    """Return what ``same_content`` does, where possible without waiting for a device.

    Returns:
        The answer, or a tensor of one boolean, on the device, that will hold it.
    """
    if not _can_be_summed(tensor):
        return True
    if isinstance(before, bytes):
        if in_host_memory(tensor) and tensor.nbytes == len(before) and tensor.is_contiguous():
            return compare_memory(before, tensor.data_ptr(), len(before)) == 0
        return _copy_of(tensor, max(len(before), SMALL)) == before
    if isinstance(before, Columns):
        now = columns_of(tensor, len(before.sums) // _WORD, keep=False)
        return now is None or same_fingerprint(before, now)
    return _compared(before, _sums_of(tensor))


def read_answers(answers: Sequence[Tensor]) -> list[bool]:
    """Return what these tensors of one boolean each hold, with one read from each device."""
    by_device: dict[torch.device, list[int]] = {}
    for index, answer in enumerate(answers):
        by_device.setdefault(answer.device, []).append(index)
    read = [False] * len(answers)
    for indices in by_device.values():
        values = torch.stack([answers[index] for index in indices]).tolist()
        for index, value in zip(indices, values, strict=True):
            read[index] = value
    return read


def same_fingerprint(one: Fingerprint, other: Fingerprint) -> bool:
    """Return whether two fingerprints, taken in the same way, are of the same contents."""
    return bool(_compared(one, other))


def _compared(one: Fingerprint, other: Fingerprint) -> bool | Tensor:
    """Return whether they are the same, as a tensor where that lies on a device."""
    if isinstance(one, bytes) or isinstance(other, bytes):
        return one == other
    if isinstance(one, Columns) or isinstance(other, Columns):
        return one[1:] == other[1:]
    parts = list(map(_equal, one, other))
    if len(one) != len(other) or any(part is False for part in parts):
        return False
    on_device = [part for part in parts if isinstance(part, torch.Tensor)]
    return torch.stack(on_device).all() if on_device else True


def _equal(old: bytes | Tensor, new: bytes | Tensor) -> bool | Tensor:
    if isinstance(old, bytes) or isinstance(new, bytes):
        return isinstance(old, bytes) and isinstance(new, bytes) and old == new
    return old.dtype == new.dtype and old.shape == new.shape and old.eq(new).all()


def _can_be_summed(tensor: Tensor) -> bool:
    """Return whether a tensor is one piece of strided memory that may be read."""
    return tensor.layout is torch.strided and is_readable(tensor)


def _copy_of(tensor: Tensor, most_bytes: int) -> bytes | None:
    """Return the contents of so many bytes of the CPU's memory, None of more or of another's."""
    if not in_host_memory(tensor):
        return None
    if tensor.is_contiguous():
        size = tensor.nbytes
    else:
        span, distinct = extent_of(tensor)
        size = tensor.element_size() * distinct
        if span != distinct and size <= most_bytes:
            # Between its elements lie those of others: what others write there is their business.
            tensor = tensor.detach().contiguous()
            return Gathered(copy_of_memory(tensor.data_ptr(), tensor.nbytes))
    return copy_of_memory(tensor.data_ptr(), size) if size <= most_bytes else None


def _sums_of(tensor: Tensor) -> tuple[bytes | Tensor, ...]:
    """Return the sums of rows and of columns, and what fills no row."""
    if not in_host_memory(tensor):
        rows, rest = _words_of(tensor)
        sums = () if rows is None else (rows.sum(1), rows.sum(0))
        return (*sums, *(() if rest is None else (rest.clone(),)))
    words, last = _rows_in_place(tensor, BLOCK) or _rows_of_copy(tensor)
    return (last,) if words is None else (*_as_bytes(_sums_in_cache(words)), last)


def _rows_of_copy(tensor: Tensor) -> tuple[Tensor | None, bytes]:
    plain = tensor.detach().resolve_conj().resolve_neg()
    rows = _rows_in_place(plain.clone(memory_format=torch.contiguous_format), BLOCK)
    return rows or (None, b"")


def _rows_in_place(
    tensor: Tensor, width: int, *, odd: bool = False
) -> tuple[Tensor | None, bytes] | None:
    """Return the CPU's memory of ``tensor`` as rows, None for none, and the bytes that are left.

    None where it has gaps or does not begin at a word. An ``odd`` number of rows: a change of the
    sign of each word, of 2**63 each, does not add up to nothing then.
    """
    start, unaligned = divmod(int(tensor.storage_offset()) * tensor.element_size(), _WORD)
    if unaligned:
        return None
    if tensor.is_contiguous():
        size = tensor.nbytes
    else:
        # A transposed or expanded tensor without holes: every element lies in the span.
        span, distinct = extent_of(tensor)
        if span != distinct:
            return None
        size = span * tensor.element_size()
    storage = tensor.untyped_storage()
    rows = size // (_WORD * width)
    if odd and rows:
        rows = (rows - 1) | 1
    read = _WORD * width * rows
    last = copy_of_memory(tensor.data_ptr() + read, size - read)
    if not rows:
        return None, last
    words = torch.empty(0, dtype=torch.int64, device="cpu")
    words.set_(storage, start, (rows, width), (width, 1))
    return words, last


def _as_bytes(tensors: Iterable[Tensor]) -> tuple[bytes, ...]:
    """Copy them: Python compares bytes in less time than torch takes to be called."""
    return tuple([copy_of_memory(each.data_ptr(), each.nbytes) for each in tensors])


def _sums_in_cache(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sums of rows and of columns; where there are many, read from memory only once."""
    if rows.shape[0] <= _MOST_AT_ONCE:
        return rows.sum(1), rows.sum(0)
    parts = [(part.sum(1), part.sum(0)) for part in torch.split(rows, _AT_ONCE)]
    return torch.cat([by_row for by_row, _ in parts]), torch.stack([c for _, c in parts]).sum(0)


def _words_of(tensor: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """Return the memory of ``tensor`` as rows of words, and what fills no row, None for nothing."""
    flat = _memory_of(tensor.detach() if tensor.requires_grad else tensor)
    size = flat.element_size()
    count = flat.numel() * size
    blocks = count // (_WORD * BLOCK)
    if not blocks:
        return None, flat.view(_INTEGERS.get(size, torch.int64))
    aligned = flat.storage_offset() * size % _WORD == 0
    if aligned and count % _WORD == 0:
        words = rest = flat.view(torch.int64)
        end = blocks * BLOCK
    else:
        rest = flat.view(torch.uint8) if aligned else flat.view(torch.uint8).clone()
        end = blocks * BLOCK * _WORD
        words = rest[:end].view(torch.int64)
    left = rest.numel() - end
    rows = words.as_strided((blocks, BLOCK), (BLOCK, 1))
    return rows, rest.as_strided((left,), (1,), rest.storage_offset() + end) if left else None


def _memory_of(tensor: Tensor) -> Tensor:
    """Return a one-dimensional view of the memory that ``tensor`` covers, or a copy of it."""
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    if tensor.is_contiguous():
        return tensor.view(-1)
    span, distinct = extent_of(tensor)
    if span == distinct:
        # A transposed or expanded tensor without holes: every element lies in the span.
        return tensor.as_strided((span,), (1,))
    return tensor.contiguous().view(-1)
