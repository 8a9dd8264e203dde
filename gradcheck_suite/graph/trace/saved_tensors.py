"""Read what a node saved for backward, without running anybody's hooks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING

import torch

from gradcheck_suite._torch_compat import (
    HookedType,
    read_saved,
    saved_attribute_names,
    storage_key,
)
from gradcheck_suite.graph.model import SavedTensor
from gradcheck_suite.graph.recording.saved_tensors import RecordedSave, unwrap
from gradcheck_suite.graph.trace.leaves import tensor_type, type_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch.autograd.graph import Node as TorchNode

__all__ = ["HIDES_SAVED", "RecordedSaves", "SavedReader"]

HIDES_SAVED = "CopySlices"
"""An in-place write into a view: the op that it stands for is inside, where Python can't look."""

_saved_attribute_names = cache(saved_attribute_names)


@dataclass(slots=True)
class SavedReader:
    """Read nodes one after another, counting each storage for the first that saved it.

    ``owners`` maps the keys of storages to whoever holds them apart from the graph. The tensors
    must stay alive while nodes are read, which the graph sees to.
    """

    owners: dict[int, str]

    def read(
        self, node: TorchNode, node_id: int
    ) -> tuple[tuple[SavedTensor, ...], bool, int | None]:
        """Return the saved tensors of ``node``, whether a backward has freed any, and their places.

        The last is how many tensors at most the node can have saved where it has freed them; None
        where it does not tell.
        """
        saved: list[SavedTensor] = []
        freed = False
        places: int | None = 0
        for attribute in _saved_attribute_names(type(node)):
            raw = read_saved(node, attribute, unwrap)
            freed = freed or raw.freed
            if raw.freed:
                places = places + len(raw.tensors) if places is not None and raw.tensors else None
            many = len(raw.tensors) > 1
            for index, tensor in enumerate(raw.tensors):
                modified = index in raw.modified
                if tensor is not None or modified:
                    name = f"{raw.name}[{index}]" if many else raw.name
                    saved.append(self._describe(name, tensor, node_id, modified=modified))
        return tuple(saved), freed, places if freed else None

    def describe_recorded(
        self, packed: Iterable[RecordedSave], node_id: int
    ) -> tuple[SavedTensor, ...]:
        """Describe what was noted while it was saved; nobody knows its names any more."""
        saved: list[SavedTensor] = []
        for number, entry in enumerate(packed, start=1):
            owner = None
            if entry.storage is not None:
                owner = self.owners.get(entry.storage)
                self.owners.setdefault(entry.storage, f"#{node_id}")
            saved.append(
                SavedTensor(
                    name=f"tensor {number}",
                    type=None if entry.shape is None else type_of(entry.shape, entry.dtype),
                    storage_bytes=entry.bytes,
                    owner=owner,
                )
            )
        return tuple(saved)

    def _describe(
        self, name: str, tensor: torch.Tensor | HookedType | None, node_id: int, *, modified: bool
    ) -> SavedTensor:
        if tensor is None:
            # Torch says that it was overwritten, and no more.
            return SavedTensor(name=name, type=None, storage_bytes=None, modified=modified)
        if not isinstance(tensor, torch.Tensor):
            return SavedTensor(name=name, type=None, storage_bytes=None, hooked=True)
        key = storage_key(tensor)
        if key is None or _is_python_number(tensor):
            return SavedTensor(
                name=name,
                type=tensor_type(tensor),
                storage_bytes=None if key is None else 0,
                modified=modified,
            )
        owner = self.owners.get(key)
        if owner is None:
            self.owners[key] = f"#{node_id}"
        return SavedTensor(
            name=name,
            type=tensor_type(tensor),
            storage_bytes=tensor.untyped_storage().nbytes(),
            owner=owner,
            modified=modified,
        )


def _is_python_number(tensor: torch.Tensor) -> bool:
    """Return whether this stands for the 2.0 of ``x * 2.0``: nobody's tensor, seen by no hook.

    Such a number does not count where dtypes are joined, which a tensor without dimensions does.
    """
    if type(tensor) is not torch.Tensor or tensor.dim():
        return False
    other = _JOINED_WITH.get(tensor.dtype)
    return other is not None and torch.result_type(tensor, other) is not tensor.dtype


_JOINED_WITH = {
    torch.int64: torch.zeros((), dtype=torch.int8, device="cpu"),
    torch.float64: torch.zeros((), dtype=torch.float16, device="cpu"),
    torch.complex128: torch.zeros((), dtype=torch.float16, device="cpu"),
}


@dataclass(slots=True)
class RecordedSaves:
    """Say which node saved what was noted, by sequence numbers.

    An op takes its number, then saves. An in-place write into a view is two nodes: the op, which
    no edge of the graph leads to, and right after it the CopySlices; between them lies at most a
    copy of the old values, and what the op saves of its result comes after both.
    """

    packed: tuple[RecordedSave, ...]
    ops: Mapping[int, str]
    _by_position: dict[int, list[RecordedSave]] = field(init=False)
    _hidden: dict[int, tuple[RecordedSave, ...]] = field(init=False)

    def __post_init__(self) -> None:
        self._by_position = defaultdict(list)
        for entry in self.packed:
            self._by_position[entry.position].append(entry)
        self._hidden = {}
        taken: set[int] = set()
        for number in sorted(n for n, op in self.ops.items() if op == HIDES_SAVED):
            found: list[RecordedSave] = []
            for position in range(number - 1, number + 3):
                if position in taken or self.ops.get(position - 1, HIDES_SAVED) != HIDES_SAVED:
                    continue
                after = position == number + 2
                mine = [e for e in self._by_position.get(position, ()) if e.is_view or not after]
                if mine:
                    taken.add(position)
                    found += mine
            self._hidden[number] = tuple(found)

    def of(self, number: int | None) -> tuple[RecordedSave, ...]:
        """Return what the node with this sequence number saved."""
        if number is None:
            return ()
        if number in self._hidden:
            return self._hidden[number]
        return tuple(self._by_position.get(number + 1, ()))
