"""Remember which line last wrote into which memory."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from gradcheck_suite._runtime.memory import extent_of
from gradcheck_suite._torch_compat import (
    function_mode_is_active,
    jit_is_tracing,
    without_torch_function,
)
from gradcheck_suite.auditing.call_sites import CallSite, call_site, kind_of_file
from gradcheck_suite.auditing.events import (
    CopiedOntoItself,
    IndexedAssigned,
    WriteRefused,
    Written,
)
from gradcheck_suite.auditing.user_modes import without_user_modes

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType

    from torch import Tensor

    from gradcheck_suite.auditing.event_bus import EventBus
    from gradcheck_suite.auditing.run_state import Moment, RunState

__all__ = ["Write", "WriteLog"]

_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter, torch.nn.Buffer})
_KEPT_PER_STORAGE = 8
"""Writes into one storage that are remembered, the latest. A bound on memory: those between a save
and its use are mostly few."""

_KEPT_STORAGES = 512
"""Storages whose writes are remembered, the latest. A bound on memory: with eight writes each,
4,096 tuples."""

_WORTH_A_LOOK = 8
"""Storages from which on old writes are looked for to be dropped. A bound on cost: fewer take no
memory worth a look."""

_is_compiling = torch.compiler.is_compiling
_new_tuple = tuple.__new__  # spares a call of Python for each write


class Write(NamedTuple):
    """One call that wrote into memory: bytes ``start`` up to ``end`` of the address space."""

    sequence: int
    operation: str
    site: CallSite | None
    start: int
    end: int


class WriteLog:
    """Takes note of in-place writes and looks up who wrote to a tensor since it was saved.

    Attributes:
        on_repeat: called, in place of an event, where an indexed assignment that was told of runs
            again; set by whoever was told, or None.
        on_write: called after each write that is noted, while somebody waits for one, or None.
        before_write: called before each write, with what is written and the code that writes,
            while somebody wants to know what was there, or None.
        on_call: called after each write that is noted, with the frame that writes, or None.
        listening: whether writes are the program's own now, and not an optimizer's.
        last: returns what the last write wrote into, where that may run again unnoted.
        latest: the number of the last write that was noted; -1 for none.
    """

    def __init__(self, bus: EventBus, state: RunState) -> None:
        self._bus = bus
        self._state = state
        self._clock = state.clock
        # By the address of the storage, the one written last at the end.
        self._writes: OrderedDict[int, list[Write]] = OrderedDict()
        self.last: Callable[[], object] = _nothing
        self.latest = -1
        self._last_operation = ""
        self._last_site: CallSite | None = None
        self._last_moment: Moment | None = None
        self._saved_by_then = 0
        self._last_code: CodeType | None = None
        self._last_offset = -1
        self.listening = False
        self.on_repeat: Callable[[Tensor, CallSite | None], object] | None = None
        self.on_write: Callable[[Tensor, str, CallSite | None], object] | None = None
        self.before_write: Callable[[Tensor, FrameType], object] | None = None
        self.on_call: Callable[[Tensor, str, FrameType], object] | None = None
        self._tells_of_indexed = False
        self._tells = self._tells_of_copies = False

    def begin(self) -> None:
        """Be told of writes from now on."""
        self._tells = self._bus.wants(Written)
        self._tells_of_indexed = self._bus.wants(IndexedAssigned)
        self._tells_of_copies = self._bus.wants(CopiedOntoItself)

    def end(self) -> None:
        """Forget the writes of an audit that is over."""
        self._writes.clear()
        self.last = _nothing
        self.on_repeat = self.on_write = self.before_write = self.on_call = None

    def runs_again(self, operation: str, caller: FrameType) -> bool:
        """Return whether the last write runs again, with nothing between: it tells nothing new.

        The caller has seen that it writes into the same tensor, ``last()``.
        """
        return (
            caller.f_lasti == self._last_offset
            and caller.f_code is self._last_code
            and self._clock.moment is self._last_moment
            and self._state.saved == self._saved_by_then
            and self._last_operation == operation
        )

    def note(self, written: object, name: str, caller: FrameType) -> None:
        """Take note of a call of ``name`` that wrote into ``written``, a tensor or several.

        The caller of the stand-in has seen that it does not just run again.
        """
        if jit_is_tracing():
            return  # what is asked of a tensor now would become a part of the program
        if type(written) in _PLAIN and not function_mode_is_active():
            self._note_tensor(written, name, caller)
            return
        targets = written if isinstance(written, (list, tuple)) else (written,)
        for tensor in targets:
            if not isinstance(tensor, torch.Tensor) or type(tensor) not in _PLAIN:
                continue
            if function_mode_is_active():
                with without_torch_function():
                    self._note_tensor(tensor, name, caller)
            else:
                self._note_tensor(tensor, name, caller)

    def look_at_copy(self, target: object, source: object, caller: FrameType) -> None:
        """Tell of a copy whose source is the very memory that was written, before it is noted."""
        if type(target) not in _PLAIN or type(source) not in _PLAIN or jit_is_tracing():
            return
        if self._tells_of_copies and without_user_modes(_is_same_memory, target, source):
            self._bus.emit(CopiedOntoItself(target, source, call_site(caller)))  # type: ignore[arg-type]  # tensors, as was asked

    def _note_tensor(self, tensor: Any, name: str, caller: FrameType) -> None:
        # Gradient checks write into single elements thousands of times: each line here counts.
        if not tensor.dim() and not tensor.is_floating_point():
            return  # a counter that a module keeps, such as batch norm's of its batches
        try:
            start = storage = tensor.data_ptr()
            offset = tensor.storage_offset()
            if offset:
                storage -= offset * tensor.itemsize
            end = start + (tensor.nbytes or 1) if tensor.is_contiguous() else _end_of(tensor, start)
        except (RuntimeError, NotImplementedError):  # sparse, or wrapped by a transform
            return
        code = caller.f_code
        is_foreign = kind_of_file[code.co_filename]
        site = call_site(caller) if is_foreign else (code, caller.f_lasti)
        known = self._writes
        writes = known.pop(storage, None)
        if writes is None:
            if len(known) >= _KEPT_STORAGES:
                known.popitem(last=False)
            writes = []
        elif len(writes) >= _KEPT_PER_STORAGE:
            del writes[0]
        known[storage] = writes
        sequence = self.latest = self._clock.tick()
        writes.append(_new_tuple(Write, (sequence, name, site, start, end)))
        if site is None or self._tells:
            self.last = _nothing
        else:
            self.last = weakref.ref(tensor)
            self._last_operation = name
            self._last_site = site
            self._last_code, self._last_offset = site[:2]
            self._last_moment = self._clock.moment
            self._saved_by_then = self._state.saved
        if name == "__setitem__" and self._tells_of_indexed:
            self.on_repeat = None
            if tensor.requires_grad:
                self._bus.emit(IndexedAssigned(tensor, site))
        if self._tells:
            self._bus.emit(Written(tensor, name, sequence, site))
        if self.on_write is not None or self.on_call is not None:
            self._tell_who_waits(tensor, name, site, caller)

    def look_before(self, target: object, caller: FrameType) -> None:
        """Tell whoever wants to know what is about to be written."""
        plain = type(target) in _PLAIN and not function_mode_is_active() and not jit_is_tracing()
        if self.before_write is None or not (plain and self.listening) or _is_compiling():
            return
        try:
            self.before_write(target, caller)  # type: ignore[arg-type]  # a tensor, as was asked
        except Exception as error:  # noqa: BLE001 - the user's program goes on
            self.before_write = None
            self._bus.note_failure("values before a write", error)

    def _tell_who_waits(
        self, tensor: Tensor, name: str, site: CallSite | None, caller: FrameType
    ) -> None:
        try:
            if self.on_write is not None:
                self.on_write(tensor, name, site)
            if self.on_call is not None:
                self.on_call(tensor, name, caller)
        except Exception as error:  # noqa: BLE001 - the user's program goes on
            self.on_write = self.on_call = None
            self._bus.note_failure("those who wait for writes", error)

    def assigned_again(self, tensor: Tensor) -> None:
        """Tell of an indexed assignment that runs again, which writes nothing new."""
        if self.on_repeat is None or not self.listening:
            return
        try:
            if function_mode_is_active():
                without_user_modes(self.on_repeat, tensor, self._last_site)
            else:
                self.on_repeat(tensor, self._last_site)
        except Exception as error:  # noqa: BLE001 - the user's program goes on
            self.on_repeat = None
            self._bus.note_failure("indexed assignments", error)

    def refused(self, target: object, name: str, error: RuntimeError) -> None:
        """Tell that torch has refused a call of ``name``."""
        if self.listening and self._bus.wants(WriteRefused):
            self._bus.emit(WriteRefused(target, name, error, call_site()))

    def forget_before(self, oldest_save: Callable[[], int]) -> None:
        """Drop the writes that no living saved tensor can be younger than, once there are many."""
        if len(self._writes) < _WORTH_A_LOOK:
            return
        oldest = oldest_save()
        for storage, writes in tuple(self._writes.items()):
            if writes[-1].sequence <= oldest:
                del self._writes[storage]

    def since(self, sequence: int, tensor: Any) -> list[Write]:
        """Return the writes into the memory of ``tensor`` after ``sequence``, oldest first.

        The saved tensor has kept its storage alive since then, so that its address stands for
        nothing else.
        """
        try:
            start = tensor.data_ptr()
            storage = start - tensor.storage_offset() * tensor.itemsize
            end = _end_of(tensor, start)
        except (RuntimeError, NotImplementedError):
            return []
        return [
            write
            for write in tuple(self._writes.get(storage, ()))
            if write.sequence > sequence and write.start < end and start < write.end
        ]


def _is_same_memory(target: Tensor, source: Tensor) -> bool:
    """Return whether each element of two tensors is the same place in memory."""
    try:
        return (
            target.data_ptr() == source.data_ptr() != 0
            and target.shape == source.shape
            and target.stride() == source.stride()
            and target.dtype == source.dtype
            and target.device == source.device
        )
    except (RuntimeError, NotImplementedError):  # sparse, or wrapped by a transform
        return False


def _end_of(tensor: Tensor, start: int) -> int:
    if tensor.is_contiguous():
        return start + (tensor.nbytes or 1)
    span, _ = extent_of(tensor)
    return start + span * tensor.itemsize


def _nothing() -> None:
    """Stand for a reference to a tensor that is no more."""
