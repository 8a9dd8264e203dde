"""Watch what forward saves for backward, and let torch's own check of it stand.

A saved tensor that passes through hooks is no longer checked by torch for in-place changes; what
is kept here in its place carries the version, and is checked when backward takes it out.
"""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from bisect import bisect_right
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from gradcheck_suite._runtime.patches import Patches
from gradcheck_suite._runtime.version_error import version_error
from gradcheck_suite._torch_compat import (
    answering,
    dispatch_mode_is_active,
    engine_entry_points,
    is_view,
    keeps_and_makes_graph,
    never_compiled,
    next_sequence_number,
    push_saved_tensors_hooks,
    remove_saved_tensors_hooks,
    saved_tensors_hooks_are_disabled,
    step_aside_from_backward,
    storage_address,
    top_saved_tensors_hooks,
    version_of,
    without_dispatch_modes,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

__all__ = ["RecordedSave", "SavedTensorRecorder", "unwrap"]


_MOST = 500_000
"""So many notes are kept at most, some 100 MB of them."""

_Noted: TypeAlias = "tuple[int, torch.Size | None, torch.dtype, int | None, int | None, bool]"


class _Placeholder:
    """What the graph holds in place of a saved tensor.

    Made for every tensor that autograd saves, so that it is filled from outside: a call of
    ``__init__`` would take longer than all that.
    """

    __slots__ = ("original", "tensor", "version")

    tensor: torch.Tensor
    version: int
    original: weakref.ref[torch.Tensor] | None


@dataclass(frozen=True, slots=True)
class RecordedSave:
    """One tensor that was saved, as plain data.

    ``position`` is the sequence number that the next node was to get when it was saved, one more
    than that of the node which saved it. ``storage`` is a number that tensors sharing memory have
    in common. ``shape`` is None where it is not made of plain numbers (nested tensors).
    ``is_view`` helps to tell what an in-place write into a view saved.
    """

    position: int
    shape: tuple[int, ...] | None
    dtype: torch.dtype
    bytes: int | None
    storage: int | None
    is_view: bool


def unwrap(packed: object) -> tuple[torch.Tensor, bool] | None:
    """Tell the tensor that was kept here and whether it was overwritten since."""
    if not isinstance(packed, _Placeholder):
        return None
    return packed.tensor, version_of(packed.tensor) != packed.version


class SavedTensorRecorder:
    """A pair of saved-tensors hooks that notes what passes through, on one thread.

    It stays away where hooks of the user's are in place, or where torch refuses hooks:
    ``is_watching`` is false then.
    """

    def __init__(self) -> None:
        # A training loop would fill the memory with notes: the oldest are forgotten.
        self._noted: deque[_Noted] = deque(maxlen=_MOST)
        self.is_recording = False
        self._began = 0
        self._end: int | None = None
        self._is_over = False
        self._thread = 0
        self._away: list[tuple[int, int]] = []
        self._left: list[int] = []
        self._patches = Patches()
        self._hooks = (self._pack_hook(), answering(_unpack))

    def start(self) -> None:
        """Install the hooks as the innermost of this thread."""
        if next_sequence_number is None or saved_tensors_hooks_are_disabled():
            return
        if top_saved_tensors_hooks() is not None:
            return
        push_saved_tensors_hooks(*self._hooks)
        self.is_recording = True
        self._thread = threading.get_ident()
        self._began = next_sequence_number()
        graph = torch.autograd.graph
        hooks = graph.saved_tensors_hooks
        for owner, name, around in (
            (graph, "disable_saved_tensors_hooks", self._stepping_aside),
            (hooks, "__enter__", self._leaving_off),
            (hooks, "__exit__", self._resumed_after),
            *((module, entry, self._paused_in_backward) for module, entry in engine_entry_points()),
        ):
            original = getattr(owner, name)
            self._patches.replace(owner, name, functools.wraps(original)(around(original)))

    def stop(self) -> None:
        """Take the hooks away, wherever they lie by now."""
        if self.is_recording:
            self._is_over = True
            self._patches.restore()
            remove_saved_tensors_hooks(self._hooks)
            if next_sequence_number is not None:
                self._end = next_sequence_number()

    def covers(self, sequence_number: int) -> bool:
        """Return whether the node with this number was made while the hooks saw what is saved."""
        return self._ran_at(sequence_number) and not self.was_away_at(sequence_number)

    def was_away_at(self, sequence_number: int) -> bool:
        """Return whether somebody else's hooks, or none, held what this node saved."""
        if not self._ran_at(sequence_number):
            return False
        if self._left and sequence_number >= self._left[0]:
            return True
        place = bisect_right(self._away, (sequence_number, sys.maxsize)) - 1
        return place >= 0 and sequence_number < self._away[place][1]

    def _ran_at(self, sequence_number: int) -> bool:
        end = self._end
        first = self._began if len(self._noted) < _MOST else self._noted[0][0]
        return (
            self.is_recording
            and first <= sequence_number
            and (end is None or sequence_number < end)
        )

    def _pause(self) -> None:
        if self._is_over or threading.get_ident() != self._thread or next_sequence_number is None:
            return
        self._left.append(next_sequence_number())

    def _resume(self) -> None:
        if self._is_over or threading.get_ident() != self._thread or next_sequence_number is None:
            return
        if self._left:
            left = self._left.pop()
            now = next_sequence_number()
            if not self._left and now > left:
                self._away.append((left, now))

    def _leaving_off(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def __enter__(hooks: Any) -> Any:  # noqa: N807 - the name that it stands in for
            result = original(hooks)
            self._pause()
            return result

        return __enter__

    def _resumed_after(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def __exit__(hooks: Any, *error: Any) -> Any:  # noqa: N807 - the name that it stands in for
            self._resume()
            return original(hooks, *error)

        return __exit__

    def _paused_in_backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Be away while a backward runs, unless it makes a graph of its own."""

        def run(outputs: Any, *args: Any, **kwargs: Any) -> Any:
            _, makes = keeps_and_makes_graph(args, kwargs)
            if makes or self._is_over or not step_aside_from_backward(self._hooks):
                return original(outputs, *args, **kwargs)
            self._pause()
            try:
                return original(outputs, *args, **kwargs)
            finally:
                if not self._is_over:
                    self._resume()
                    push_saved_tensors_hooks(*self._hooks)

        return run

    def _stepping_aside(
        self, original: Callable[[str], AbstractContextManager[None]]
    ) -> Callable[[str], AbstractContextManager[None]]:
        """Make room for torch.func, which refuses to run under saved-tensors hooks."""

        @contextmanager
        def disable_saved_tensors_hooks(error_message: str) -> Iterator[None]:
            top = top_saved_tensors_hooks()
            aside = top is not None and top[0] is self._hooks[0]
            if aside:
                remove_saved_tensors_hooks(self._hooks)
                self._pause()
            try:
                with original(error_message):
                    yield
            finally:
                if aside and not self._is_over:
                    self._resume()
                    push_saved_tensors_hooks(*self._hooks)

        return disable_saved_tensors_hooks

    def packed(self) -> tuple[RecordedSave, ...]:
        """Return what was saved, in order."""
        return tuple(
            RecordedSave(position, _plain(shape), dtype, size, storage, view)
            for position, shape, dtype, size, storage, view in self._noted
        )

    def _pack_hook(self) -> Callable[[torch.Tensor], _Placeholder]:
        note = self._noted.append
        position = next_sequence_number or (lambda: 0)
        address_of, has_view = storage_address, is_view

        def pack(tensor: torch.Tensor) -> _Placeholder:
            # Runs for every tensor that is saved: each line here is a part of forward.
            key = size = None
            try:
                storage = tensor.untyped_storage()
                key, size = address_of(storage), storage.nbytes()
            except (NotImplementedError, RuntimeError):  # no storage of its own
                pass
            shape = None if tensor.is_nested else tensor.shape
            note((position(), shape, tensor.dtype, size, key, has_view(tensor)))
            kept = _Placeholder()
            kept.version = version_of(tensor)
            if tensor.is_leaf:
                kept.tensor = tensor
                kept.original = None
                return kept
            # The tensor itself would close a cycle through its node that no collector sees.
            if dispatch_mode_is_active():
                with without_dispatch_modes():
                    kept.tensor = tensor.detach()
            else:
                kept.tensor = tensor.detach()
            kept.original = weakref.ref(tensor)
            return kept

        return never_compiled(pack)


def _plain(shape: torch.Size | None) -> tuple[int, ...] | None:
    return tuple(shape) if shape is not None and all(type(size) is int for size in shape) else None


def _unpack(kept: _Placeholder) -> torch.Tensor:
    tensor = kept.tensor
    version = version_of(tensor)
    if version != kept.version:
        raise version_error(kept, version)
    return tensor
