"""Read the CPU's memory at an address, in as little time as Python allows."""

from __future__ import annotations

import ctypes
from functools import partial
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["compare_memory", "copy_of_memory", "memory_of_size"]

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
