"""Remember which line last wrote into which memory.

The functions that write into their first argument are replaced by ones that also take a note.
Training code calls few of them outside ``optimizer.step()``, so this costs next to nothing, where
a torch-function or dispatch mode would slow every call down.
"""

from __future__ import annotations

import functools
import types
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, SupportsIndex

import torch

from gradcheck_suite._torch_compat import (
    bound_method_maker,
    forget_compiler_tables,
    forget_torchscript,
    function_mode_is_active,
    in_place_functions,
    jit_is_tracing,
    teach_torchscript,
    without_torch_function,
)
from gradcheck_suite.auditing.call_sites import CallSite, call_site
from gradcheck_suite.auditing.events import WriteRefused, Written
from gradcheck_suite.auditing.patches import Patches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

    from gradcheck_suite.auditing.recorder import Recorder

__all__ = ["Write", "Writers", "stand_ins_kept"]

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


class _Watched:
    """Stand in for a function that writes into its first argument, and take note of each call.

    It equals the original, since torch hands the function that it finds under a name to
    ``__torch_function__``, and programs look up there what they have registered by function.
    """

    def __init__(self, original: Callable[..., Any], name: str) -> None:
        functools.update_wrapper(self, original)
        self.original = original
        self._name = name
        self.writers: Writers | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        writers = self.writers
        try:
            result = self.original(*args, **kwargs)
        except RuntimeError as error:
            if writers is not None:
                writers.refused(args[0] if args else kwargs.get("input"), self._name, error)
            raise
        if writers is not None and writers.listening and not _is_compiling():
            writers.note(args[0] if args else kwargs.get("input"), self._name)
        return result

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, _Watched):
            other = other.original
        return bool(self.original == other)

    def __hash__(self) -> int:
        return hash(self.original)

    def __repr__(self) -> str:
        return repr(self.original)

    # Compilers copy the functions that they trace; a function is its own copy.
    def __copy__(self) -> _Watched:
        return self

    def __deepcopy__(self, memo: dict[int, object]) -> _Watched:
        return self

    def __reduce_ex__(self, protocol: SupportsIndex) -> str | tuple[Any, ...]:
        return self.original.__reduce_ex__(protocol)


_is_compiling = torch.compiler.is_compiling
# Made once for each function, as there are hundreds: an audit begins and ends in little time.
_WATCHED: dict[tuple[object, str], tuple[_Watched, object]] = {}


def _watched(owner: object, name: str, original: Callable[..., Any]) -> tuple[_Watched, object]:
    """Return the stand-in for a function, and what to put in the place of the function."""
    known = _WATCHED.get((owner, name))
    if known is None or known[0].original is not original:
        watched = _Watched(original, name)
        placed = bound_method_maker(watched) if isinstance(owner, type) else watched
        known = _WATCHED[owner, name] = watched, placed
    return known


_KEPT: list[_Watched] = []


def _place(patches: Patches) -> list[_Watched]:
    placed_ones = []
    for owner, name in in_place_functions():
        watched, placed = _watched(owner, name, getattr(owner, name))
        placed_ones.append(watched)
        patches.replace(owner, name, placed)
    teach_torchscript({watched: watched.original for watched in placed_ones})
    forget_compiler_tables()
    return placed_ones


def _forget(replacements: list[_Watched]) -> None:
    if replacements:
        forget_torchscript(replacements)
        forget_compiler_tables()


@contextmanager
def stand_ins_kept() -> Iterator[None]:
    """Leave the stand-ins in place between the audits inside, which then begin and end sooner.

    For runs of many short audits, such as one for each test. While none runs, they take no note.
    Does nothing inside itself.
    """
    if _KEPT:
        yield
        return
    patches = Patches()
    _KEPT.extend(_place(patches))
    try:
        yield
    finally:
        replacements = _KEPT.copy()
        _KEPT.clear()
        patches.restore()
        _forget(replacements)


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
        self._replacements: list[_Watched] = []
        self.listening = False
        self.on_indexed: Callable[[Tensor, CallSite | None], None] | None = None
        self._tells = False

    def install(self, patches: Patches) -> None:
        """Replace every function that writes into its first argument."""
        self._replacements = _KEPT or _place(patches)
        for watched in self._replacements:
            watched.writers = self
        self._tells = self._recorder.wants(Written)

    def uninstall(self) -> None:
        """Clear what other parts of torch know about the replacements, which are gone by now."""
        for watched in self._replacements:
            watched.writers = None
        if self._replacements is not _KEPT:
            _forget(self._replacements)
        self._replacements = []
        self._writes.clear()

    def note(self, written: object, name: str) -> None:
        """Take note of a call of ``name`` that wrote into ``written``, a tensor or several."""
        if jit_is_tracing():
            return  # what is asked of a tensor now would become a part of the program
        targets = written if isinstance(written, (list, tuple)) else (written,)
        for tensor in targets:
            if not isinstance(tensor, torch.Tensor) or type(tensor) not in _PLAIN:
                continue
            if function_mode_is_active():
                with without_torch_function():
                    self._note_tensor(tensor, name)
            else:
                self._note_tensor(tensor, name)

    def _note_tensor(self, tensor: Tensor, name: str) -> None:
        if not tensor.dim() and not tensor.is_floating_point():
            return  # a counter that a module keeps, such as batch norm's of its batches
        try:
            storage = tensor.untyped_storage().data_ptr()
            start, end = _extent(tensor)
        except (RuntimeError, NotImplementedError):  # sparse, or wrapped by a transform
            return
        writes = self._writes.get(storage)
        if writes is None:
            if len(self._writes) >= _KEPT_STORAGES:
                self._forget_oldest()
            writes = self._writes[storage] = deque(maxlen=_KEPT_PER_STORAGE)
        site = call_site()
        sequence = self._clock.tick()
        writes.append(Write(sequence=sequence, operation=name, site=site, start=start, end=end))
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
    elements = 1 + sum(
        (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    return start, start + elements * tensor.element_size()
