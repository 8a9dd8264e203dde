"""Remember which line last wrote into which memory."""

from __future__ import annotations

import sys
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from gradcheck_suite._torch_compat import (
    function_mode_is_active,
    jit_is_tracing,
    without_torch_function,
)
from gradcheck_suite.auditing.call_sites import CallSite, call_site
from gradcheck_suite.auditing.checksums import extent_of
from gradcheck_suite.auditing.events import WriteRefused, Written

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from gradcheck_suite.auditing.recorder import Recorder

__all__ = ["Write", "Writers"]

_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter, torch.nn.Buffer})
_KEPT_PER_STORAGE = 8
_KEPT_STORAGES = 512
_WORTH_A_LOOK = 8


class Write(NamedTuple):
    """One call that wrote into memory: bytes ``start`` up to ``end`` of the address space."""

    sequence: int
    operation: str
    site: CallSite | None
    start: int
    end: int


class Writers:
    """Takes note of in-place writes and looks up who wrote to a tensor since it was saved.

    Attributes:
        listening: whether writes are the program's own now, and not an optimizer's.
        on_indexed: called after an indexed assignment to a tensor that requires grad.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._clock = recorder.clock
        self._writes: dict[int, deque[Write]] = {}
        self._last: tuple[int, Write] | None = None
        self._saved_by_then = 0
        self.listening = False
        self.on_indexed: Callable[[Tensor, CallSite | None], None] | None = None
        self._tells = False

    def begin(self) -> None:
        """Be told of writes from now on."""
        self._tells = self._recorder.wants(Written)

    def end(self) -> None:
        """Forget the writes of an audit that is over."""
        self._writes.clear()
        self._last = None

    def note(self, written: object, name: str) -> None:
        """Take note of a call of ``name`` that wrote into ``written``, a tensor or several."""
        if self._last is not None and self._is_again(self._last, written, name):
            return
        if jit_is_tracing():
            return  # what is asked of a tensor now would become a part of the program
        if type(written) in _PLAIN and not function_mode_is_active():
            self._note_tensor(written, name)
            return
        targets = written if isinstance(written, (list, tuple)) else (written,)
        for tensor in targets:
            if not isinstance(tensor, torch.Tensor) or type(tensor) not in _PLAIN:
                continue
            if function_mode_is_active():
                with without_torch_function():
                    self._note_tensor(tensor, name)
            else:
                self._note_tensor(tensor, name)

    def _is_again(self, last: tuple[int, Write], written: object, name: str) -> bool:
        """Return whether the last write runs again, with nothing between: it tells nothing new."""
        identity, write = last
        if (
            identity != id(written)
            or write.operation != name
            or write.sequence != self._clock.moment.sequence
            or self._saved_by_then != self._recorder.saved_tensors.saved
        ):
            return False
        # Above are `note` and the stand-in.
        frame = sys._getframe(3)  # noqa: SLF001 - the only cheap way
        return write.site == (frame.f_code, frame.f_lasti)

    def _note_tensor(self, tensor: Any, name: str) -> None:
        # Gradient checks write into single elements thousands of times: each line here counts.
        if not tensor.dim() and not tensor.is_floating_point():
            return  # a counter that a module keeps, such as batch norm's of its batches
        try:
            storage = tensor.untyped_storage().data_ptr()
            start, end = _extent(tensor)
        except (RuntimeError, NotImplementedError):  # sparse, or wrapped by a transform
            return
        site = call_site()
        writes = self._writes.get(storage)
        if writes is None:
            if len(self._writes) >= _KEPT_STORAGES:
                self._forget_oldest()
            writes = self._writes[storage] = deque(maxlen=_KEPT_PER_STORAGE)
        sequence = self._clock.tick()
        write = Write(sequence, name, site, start, end)
        writes.append(write)
        self._last = None if self._tells or name == "__setitem__" else (id(tensor), write)
        self._saved_by_then = self._recorder.saved_tensors.saved
        if name == "__setitem__" and self.on_indexed is not None and tensor.requires_grad:
            try:
                self.on_indexed(tensor, site)
            except Exception as error:  # noqa: BLE001 - the user's program goes on
                self.on_indexed = None
                self._recorder.note_failure("indexed assignments", error)
        if self._tells:
            self._recorder.emit(Written(tensor, name, sequence, site))

    def refused(self, target: object, name: str, error: RuntimeError) -> None:
        """Tell that torch has refused a call of ``name``."""
        if self.listening and self._recorder.wants(WriteRefused):
            self._recorder.emit(WriteRefused(target, name, error, call_site()))

    def forget_before(self, oldest_save: Callable[[], int]) -> None:
        """Drop the writes that no living saved tensor can be younger than, once there are many."""
        if len(self._writes) < _WORTH_A_LOOK:
            return
        oldest = oldest_save()
        self._writes = {
            storage: writes
            for storage, writes in self._writes.items()
            if writes[-1].sequence > oldest
        }

    def _forget_oldest(self) -> None:
        by_age = sorted(self._writes, key=lambda storage: self._writes[storage][-1].sequence)
        for storage in by_age[: _KEPT_STORAGES // 2]:
            del self._writes[storage]

    def since(self, sequence: int, tensor: Tensor) -> list[Write]:
        """Return the writes into the memory of ``tensor`` after ``sequence``, oldest first.

        The saved tensor has kept its storage alive since then, so that its address stands for
        nothing else.
        """
        try:
            storage = tensor.untyped_storage().data_ptr()
            start, end = _extent(tensor)
        except (RuntimeError, NotImplementedError):
            return []
        return [
            write
            for write in self._writes.get(storage, ())
            if write.sequence > sequence and write.start < end and start < write.end
        ]


def _extent(tensor: Tensor) -> tuple[int, int]:
    start = tensor.data_ptr()
    if tensor.is_contiguous():
        return start, start + max(tensor.nbytes, tensor.element_size())
    span, _ = extent_of(tensor)
    return start, start + span * tensor.element_size()
