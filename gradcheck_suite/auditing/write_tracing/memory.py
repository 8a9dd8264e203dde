"""The memory of saved tensors, and after which line it was first seen changed."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from gradcheck_suite._runtime.memory import is_readable
from gradcheck_suite._torch_compat import (
    dispatch_mode_is_active,
    function_mode_is_active,
    jit_is_tracing,
    version_of,
    without_dispatch_modes,
    without_torch_function,
)
from gradcheck_suite.auditing.call_sites import CallSite
from gradcheck_suite.auditing.saved_tensors.checksums import same_content, same_fingerprint
from gradcheck_suite.auditing.user_modes import graph_is_captured
from gradcheck_suite.auditing.write_tracing.lines import offset_in

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from torch import Tensor

    from gradcheck_suite.auditing.saved_tensors.checksums import Fingerprint
    from gradcheck_suite.auditing.saved_tensors.saved_tensor import PackedTensor
    from gradcheck_suite.auditing.write_tracing.lines import Place

__all__ = ["Change", "WatchedMemory", "site_of"]

_BYTES_PER_UNIT = 1 << 15
"""Bytes whose comparison counts as one more unit of work: 32 KiB took 3 microseconds in the cache,
with the call, and 8 outside (one thread of a busy AMD EPYC)."""


@dataclass(frozen=True, slots=True)
class Change:
    """When and where watched memory was first seen changed.

    Attributes:
        sequence: the number on the recorder's clock.
        site: the line that had just ended; None where it can't be told.
        certain: whether nothing but that line can have written.
        in_step: whether an optimizer's step was running.
    """

    sequence: int
    site: CallSite | None
    certain: bool
    in_step: bool


class _Region:
    """One piece of memory, as it was when it was saved."""

    __slots__ = (
        "__weakref__",
        "address",
        "change",
        "fingerprint",
        "packed",
        "size",
        "version",
    )

    def __init__(self, packed: PackedTensor, size: int) -> None:
        self.packed = [weakref.ref(packed)]
        self.fingerprint: Fingerprint = packed.fingerprint
        self.address = packed.checked_address
        self.version = packed.version
        self.size = size
        self.change: Change | None = None

    def tensor(self) -> Tensor | None:
        """Return the saved tensor while any of those who saved it is kept."""
        while self.packed:
            packed = self.packed[-1]()
            if packed is not None:
                return packed.tensor
            self.packed.pop()
        return None

    def is_as_saved_by(self, packed: PackedTensor) -> bool:
        """Return whether this one has saved the same memory, with nothing written between."""
        return (
            self.change is None
            and self.version == packed.version
            and same_fingerprint(self.fingerprint, packed.fingerprint)
        )


_Key: TypeAlias = "tuple[int, torch.Size, tuple[int, ...]]"


class WatchedMemory:
    """Compares the memory of saved tensors with what it was when they were saved.

    Nothing here keeps a saved tensor alive.

    Attributes:
        work: what looking has cost so far, in units of about a microsecond.
        left_out: how many saved tensors would have taken more memory to read than allowed.
    """

    def __init__(self, noted: Callable[[Tensor, Place | None], Change]) -> None:
        self._noted = noted
        self._regions: dict[_Key, _Region] = {}
        self._older: list[_Region] = []
        self._of: weakref.WeakKeyDictionary[PackedTensor, _Region] = weakref.WeakKeyDictionary()
        self._bytes = 0
        self._missed_a_line = False
        self.work = 0
        self.left_out = 0

    def __bool__(self) -> bool:
        return bool(self._regions or self._older)

    def clear(self) -> None:
        """Watch nothing any more; what was seen to change is still known."""
        self._regions.clear()
        self._older.clear()
        self._bytes = 0

    def add(self, packed: PackedTensor, *, most_bytes: int) -> None:
        """Watch a tensor that was just saved, with its fingerprint."""
        tensor = packed.tensor
        key = (packed.checked_address, tensor.shape, tensor.stride())
        known = self._regions.get(key)
        if known is not None:
            if known.is_as_saved_by(packed):
                known.packed.append(weakref.ref(packed))
                self._of[packed] = known
                return
            self._older.append(known)
        size = tensor.nbytes
        if self._bytes + size > most_bytes:
            self._forget_dead()
        if self._bytes + size > most_bytes:
            self.left_out += 1
            return
        self._bytes += size
        self._regions[key] = self._of[packed] = _Region(packed, size)

    def change_of(self, packed: PackedTensor) -> Change | None:
        """Return when the memory that this one saved was changed, or None if it wasn't seen."""
        region = self._of.get(packed)
        return None if region is None else region.change

    def watches(self, packed: PackedTensor) -> bool:
        """Return whether the memory of this one is, or was, watched."""
        return packed in self._of

    def look(self, place: Place) -> None:
        """Compare everything, after the line at ``place``."""
        if jit_is_tracing() or graph_is_captured():
            # Reading would become part of what is recorded.
            self._missed_a_line = True
            return
        if function_mode_is_active() or dispatch_mode_is_active():
            with without_torch_function(), without_dispatch_modes():
                self._compare(None if self._missed_a_line else place)
        else:
            self._compare(None if self._missed_a_line else place)
        self._missed_a_line = False

    def _compare(self, place: Place | None) -> None:
        dead = False
        for region in (*self._regions.values(), *self._older):
            tensor = region.tensor()
            if tensor is None:
                dead = True
                continue
            self.work += 1 + region.size // _BYTES_PER_UNIT
            same = _is_same(region, tensor)
            if same is None:
                continue
            if same:
                region.change = None
            elif region.change is None:
                region.change = self._noted(tensor, place)
        if dead:
            self._forget_dead()

    def _forget_dead(self) -> None:
        self._regions = {
            key: region for key, region in self._regions.items() if region.tensor() is not None
        }
        self._older = [region for region in self._older if region.tensor() is not None]
        self._bytes = sum(region.size for region in (*self._regions.values(), *self._older))


def site_of(place: Place | None) -> CallSite | None:
    """Return a line as the place in code that findings tell of."""
    return None if place is None else (place[0], offset_in(place))


def _is_same(region: _Region, tensor: Tensor) -> bool | None:
    """Return whether the memory is as it was saved, or None where it can't be read now."""
    if version_of(tensor) != region.version:
        return False
    try:
        return same_content(region.fingerprint, tensor) if is_readable(tensor) else None
    except RuntimeError:  # no memory left for the sums
        return None
