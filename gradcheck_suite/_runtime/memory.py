"""Ask whether a tensor's memory is there, and read the CPU's in as little time as Python allows.

A tensor's memory may be gone while the tensor lives: sharded training frees that of parameters
between forward and backward. torch does not look before it reads; the process ends. Whoever reads
values of a tensor that it has not made asks ``is_readable`` first.
"""

from __future__ import annotations

import ctypes
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch

from gradcheck_suite._torch_compat import sparse_coo_parts
from gradcheck_suite.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

__all__ = [
    "compare_memory",
    "copy_of_memory",
    "extent_of",
    "has_room",
    "is_readable",
    "memory_of_size",
    "require_memory",
]

_MOST_SIZES = 512
"""So many sizes are kept, 3 kB each."""


def _memory_copier() -> Callable[[int, int], bytes]:
    make = getattr(getattr(ctypes, "pythonapi", None), "PyBytes_FromStringAndSize", None)
    if make is None:
        return ctypes.string_at
    copier: Any = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_ssize_t)(
        ctypes.cast(make, ctypes.c_void_p).value or 0
    )
    return cast("Callable[[int, int], bytes]", copier)


copy_of_memory: Callable[[int, int], bytes] = _memory_copier()
"""Return the bytes at an address; like ``ctypes.string_at``, spared a call of Python's own."""


def _memory_comparer() -> Callable[[bytes, int, int], int]:
    try:
        compare = ctypes.CDLL(None).memcmp
    except (AttributeError, OSError, TypeError):  # no C library under this name, as on Windows
        return lambda content, address, size: content[:size] != copy_of_memory(address, size)
    # A type that keeps Python's lock: another thread must not write, or look, in between.
    kind = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t)
    comparer: Any = kind(ctypes.cast(compare, ctypes.c_void_p).value or 0)
    return cast("Callable[[bytes, int, int], int]", comparer)


compare_memory: Callable[[bytes, int, int], int] = _memory_comparer()
"""Return 0 if so many of these bytes are those at an address: in half the time of a copy."""


class _Copied:
    """Stands in for an array, where there are too many sizes to keep a type for each."""

    __slots__ = ("raw",)

    def __init__(self, size: int, address: int) -> None:
        self.raw = copy_of_memory(address, size)


class _MemoryOfSize(dict[int, "Callable[[int], Any]"]):
    def __missing__(self, size: int) -> Callable[[int], Any]:
        if len(self) >= _MOST_SIZES:
            return partial(_Copied, size)
        of_size: Callable[[int], Any] = (ctypes.c_char * size).from_address
        self[size] = of_size
        return of_size


memory_of_size = _MemoryOfSize()
"""By a number of bytes, what finds so many at an address: ``memory_of_size[size](address).raw``.

An array type's own method copies up to some kilobytes in half the time of ``copy_of_memory``, where
most goes into the call of a foreign function. To make the type takes 20 microseconds.
"""


def is_readable(tensor: Tensor) -> bool:
    """Return whether the values of a tensor are in memory of its own, all of them.

    Not so for tensors whose storage was freed or made smaller, for those on the meta device, under
    a transform of ``torch.func``, quantised, nested or sparse in another layout than COO, and for
    tensors of a subclass that wraps others or has shapes alone: reading them fails, ends the
    process, or has effects elsewhere, such as communication between ranks.

    >>> import torch
    >>> weight = torch.ones(3)
    >>> is_readable(weight), is_readable(torch.ones(3, device="meta"))
    (True, False)
    >>> _ = weight.untyped_storage().resize_(0)
    >>> is_readable(weight)
    False
    """
    try:
        if tensor.layout is not torch.strided:
            is_coo = tensor.layout is torch.sparse_coo and not tensor.is_meta
            return is_coo and all(map(is_readable, sparse_coo_parts(tensor.detach())))
        if tensor.is_meta or tensor.is_nested or tensor.is_quantized:
            return False
        if not tensor.nbytes:
            return True
        storage = tensor.untyped_storage()
        end = (tensor.storage_offset() + extent_of(tensor)[0]) * tensor.itemsize
        # Wrappers of others say that they have room, at an address that is nobody's. One that has
        # shapes alone warns of being asked for it.
        is_there = storage.nbytes() >= end and storage.device.type != "meta"
        return is_there and storage.data_ptr() != 0
    except Exception:  # noqa: BLE001 - torch refuses in several ways; subclasses raise what they like
        return False


def has_room(tensor: Tensor, size: int) -> bool:
    """Return whether the storage of a tensor has so many bytes from where the tensor begins."""
    start = tensor.storage_offset() * tensor.itemsize
    return tensor.untyped_storage().nbytes() >= start + size


def require_memory(tensor: Tensor, name: str) -> None:
    """Raise UsageError for a tensor whose storage has less room than its elements take."""
    try:
        size = extent_of(tensor)[0] * tensor.element_size() if tensor.numel() else 0
        is_there = not size or has_room(tensor, size)
    except Exception:  # noqa: BLE001 - sparse tensors and subclasses have no storage to ask
        return
    if not is_there:
        raise UsageError(
            f"{name} has no values: its storage was freed or made smaller (it takes {size:,} "
            f"bytes, and there are {tensor.untyped_storage().nbytes():,}); give it values first"
        )


def extent_of(tensor: Tensor) -> tuple[int, int]:
    """Return over how many elements of memory a tensor extends, and how many of them it has."""
    span = distinct = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        if stride:
            span += (size - 1) * stride
            distinct *= size
    return span, distinct
