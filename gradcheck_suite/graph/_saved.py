"""Read what a node saved for backward, without running anybody's hooks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import torch

from gradcheck_suite._torch_compat import (
    HookedType,
    read_saved,
    saved_attribute_names,
    storage_key,
)
from gradcheck_suite.graph._leaves import tensor_type
from gradcheck_suite.graph.model import SavedTensor

if TYPE_CHECKING:
    from torch.autograd.graph import Node as TorchNode

__all__ = ["SavedReader"]

_saved_attribute_names = cache(saved_attribute_names)


@dataclass(slots=True)
class SavedReader:
    """Read nodes one after another, counting each storage for the first that saved it.

    ``owners`` maps the keys of storages to whoever holds them apart from the graph. The tensors
    must stay alive while nodes are read, which the graph sees to.
    """

    owners: dict[int, str]

    def read(self, node: TorchNode, node_id: int) -> tuple[tuple[SavedTensor, ...], bool]:
        """Return the saved tensors of ``node``, and whether a backward has freed any."""
        saved: list[SavedTensor] = []
        freed = False
        for attribute in _saved_attribute_names(type(node)):
            raw = read_saved(node, attribute)
            freed = freed or raw.freed
            many = len(raw.tensors) > 1
            for index, tensor in enumerate(raw.tensors):
                if tensor is not None:
                    name = f"{raw.name}[{index}]" if many else raw.name
                    saved.append(self._describe(name, tensor, node_id))
        return tuple(saved), freed

    def _describe(self, name: str, tensor: torch.Tensor | HookedType, node_id: int) -> SavedTensor:
        if not isinstance(tensor, torch.Tensor):
            return SavedTensor(name=name, type=None, storage_bytes=None, hooked=True)
        key = storage_key(tensor)
        if key is None:
            return SavedTensor(name=name, type=tensor_type(tensor), storage_bytes=None)
        owner = self.owners.get(key)
        if owner is None:
            self.owners[key] = f"#{node_id}"
        return SavedTensor(
            name=name,
            type=tensor_type(tensor),
            storage_bytes=tensor.untyped_storage().nbytes(),
            owner=owner,
        )
