"""Remember which line last wrote into which memory.

The functions that write into their first argument are replaced by ones that also take a note.
Training code calls few of them outside ``optimizer.step()``, so this costs next to nothing, where
a torch-function or dispatch mode would slow every call down.
"""

from __future__ import annotations

import functools
import types
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, SupportsIndex

import torch

from gradcheck_suite._torch_compat import (
    forget_compiler_tables,
    forget_torchscript,
    in_place_functions,
    teach_torchscript,
    without_torch_function,
)
from gradcheck_suite.auditing.call_sites import CallSite, call_site

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from gradcheck_suite.auditing.patches import Patches
    from gradcheck_suite.auditing.recorder import Recorder

__all__ = ["Write", "Writers"]

_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter, torch.nn.Buffer})
_KEPT_PER_STORAGE = 8
_KEPT_STORAGES = 512
_WORTH_A_LOOK = 8


@dataclass(frozen=True, slots=True)
class Write:
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
        result = self.original(*args, **kwargs)
        writers = self.writers
        if writers is None or _is_compiling() or not writers.listening:
            return result
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
_WATCHED: dict[tuple[object, str], _Watched] = {}


def _watched(owner: object, name: str, original: Callable[..., Any]) -> _Watched:
    known = _WATCHED.get((owner, name))
    if known is None or known.original is not original:
        known = _WATCHED[owner, name] = _Watched(original, name)
    return known


class Writers:
    """Takes note of in-place writes and looks up who wrote to a tensor since it was saved."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._writes: dict[int, deque[Write]] = {}
        self._replacements: list[_Watched] = []

    def install(self, patches: Patches) -> None:
        """Replace every function that writes into its first argument."""
        for owner, name in in_place_functions():
            original = getattr(owner, name)
            replacement = _watched(owner, name, original)
            replacement.writers = self
            self._replacements.append(replacement)
            teach_torchscript(replacement, original)
            patches.replace(owner, name, replacement)
        forget_compiler_tables()

    def uninstall(self) -> None:
        """Clear what other parts of torch know about the replacements, which are gone by now."""
        for replacement in self._replacements:
            replacement.writers = None
            forget_torchscript(replacement)
        self._replacements.clear()
        self._writes.clear()
        forget_compiler_tables()

    @property
    def listening(self) -> bool:
        """Whether writes are the program's own now, and not an optimizer's."""
        return self._recorder.running and not self._recorder.inside_step

    def note(self, written: object, name: str) -> None:
        """Take note of a call of ``name`` that wrote into ``written``, a tensor or several."""
        targets = written if isinstance(written, (list, tuple)) else (written,)
        with without_torch_function():
            for tensor in targets:
                if not (isinstance(tensor, torch.Tensor) and type(tensor) in _PLAIN):
                    continue
                # Not the counters that modules keep, such as batch norm's of its batches.
                if tensor.dim() or tensor.is_floating_point():
                    self._note_tensor(tensor, name)

    def _note_tensor(self, tensor: Tensor, name: str) -> None:
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
        writes.append(
            Write(
                sequence=self._recorder.tick(),
                operation=name,
                site=call_site(),
                start=start,
                end=end,
            )
        )

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
    elements = 1 + sum(
        (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    return start, start + elements * tensor.element_size()
