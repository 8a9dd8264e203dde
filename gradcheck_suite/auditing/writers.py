"""Remember which line last wrote into which memory.

The functions that write into their first argument are replaced by ones that also take a note.
Training code calls few of them outside ``optimizer.step()``, so this costs next to nothing, where
a torch-function or dispatch mode would slow every call down.
"""

from __future__ import annotations

import functools
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

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
_KEPT_STORAGES = 4096


@dataclass(frozen=True, slots=True)
class Write:
    """One call that wrote into memory: bytes ``start`` up to ``end`` of the address space."""

    sequence: int
    operation: str
    site: CallSite | None
    start: int
    end: int


class Writers:
    """Takes note of in-place writes and looks up who wrote to a tensor since it was saved."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._writes: dict[int, deque[Write]] = {}
        self._replacements: list[Callable[..., Any]] = []

    def install(self, patches: Patches) -> None:
        """Replace every function that writes into its first argument."""
        for owner, name in in_place_functions():
            original = getattr(owner, name)
            replacement = self._watched(original, name)
            if teach_torchscript(replacement, original):
                self._replacements.append(replacement)
            patches.replace(owner, name, replacement)
        forget_compiler_tables()

    def uninstall(self) -> None:
        """Clear what other parts of torch know about the replacements, which are gone by now."""
        for replacement in self._replacements:
            forget_torchscript(replacement)
        self._replacements.clear()
        self._writes.clear()
        forget_compiler_tables()

    def _watched(self, original: Callable[..., Any], name: str) -> Callable[..., Any]:
        recorder = self._recorder
        note = self._note
        is_compiling = torch.compiler.is_compiling

        @functools.wraps(original)
        def watched(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            if is_compiling() or recorder.inside_step or not recorder.running:
                return result
            note(args[0] if args else kwargs.get("input"), name)
            return result

        return watched

    def _note(self, written: object, name: str) -> None:
        targets = written if isinstance(written, (list, tuple)) else (written,)
        with without_torch_function():
            for tensor in targets:
                if type(tensor) in _PLAIN:
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
