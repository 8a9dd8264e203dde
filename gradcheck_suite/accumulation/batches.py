"""Batches: their size, their micro-batches, and copies that a loop may write into."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch

from gradcheck_suite._runtime.memory import require_memory
from gradcheck_suite.errors import UsageError
from gradcheck_suite.verification.target.tree import leaves_with_paths, replace_leaves

__all__ = ["Split", "copied", "micro_batches"]

Split: TypeAlias = "Callable[[Any, int], Sequence[Any]]"
"""Takes a batch and a number, and returns that many micro-batches."""


def micro_batches(batch: Any, number: int, split: Split | None) -> list[Any]:
    """Cut a batch into so many micro-batches.

    Without ``split``, each tensor whose first dimension is that of the first tensor is cut along
    it, and so is each list or tuple of that length; all else goes to each of them as it is.

    Raises:
        UsageError: the batch has no such tensor, or does not divide evenly.

    >>> micro_batches({"x": torch.arange(4), "ids": ["a", "b", "c", "d"], "step": 7}, 2, None)[1]
    {'x': tensor([2, 3]), 'ids': ['c', 'd'], 'step': 7}
    """
    if split is not None:
        parts = list(split(batch, number))
        if len(parts) != number:
            raise UsageError(
                f"check_accumulation: split(batch, {number}) returned {len(parts)} micro-batches; "
                f"expected {number}"
            )
        return parts
    size = _size_of(batch)
    if size is None:
        raise UsageError(
            "check_accumulation: the batch has no tensor with a first dimension to cut; give "
            "split=, a function of the batch and a number that returns so many micro-batches"
        )
    if size % number:
        raise UsageError(
            f"check_accumulation: a batch of {size} can't be cut into {number} equal micro-batches;"
            f" give a batch of {size - size % number or number}, or split="
        )
    length = size // number
    return [
        _cut(batch, size, slice(index * length, (index + 1) * length)) for index in range(number)
    ]


def copied(batch: Any) -> Any:
    """Return the same batch with tensors of its own, for a loop that may write into them."""
    return replace_leaves(batch, _copied_leaf)


def _copied_leaf(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    require_memory(leaf, "check_accumulation: a tensor of the batch")
    return leaf.detach().clone().requires_grad_(leaf.requires_grad)


def _size_of(batch: Any) -> int | None:
    for _, leaf in leaves_with_paths(batch, "batch"):
        if isinstance(leaf, torch.Tensor) and leaf.dim():
            return leaf.shape[0]
    return None


def _cut(value: Any, size: int, part: slice) -> Any:
    if isinstance(value, torch.Tensor):
        return value[part] if _is_column(value, size) else value
    if isinstance(value, (list, tuple)):
        return _cut_sequence(value, size, part)
    if isinstance(value, Mapping):
        twin: Any = copy.copy(value)
        for key in value:
            twin[key] = _cut(value[key], size, part)
        return twin
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        twin = copy.copy(value)
        for field in dataclasses.fields(value):
            # Frozen ones refuse setattr.
            object.__setattr__(twin, field.name, _cut(getattr(value, field.name), size, part))
        return twin
    return value


def _cut_sequence(value: Any, size: int, part: slice) -> Any:
    if len(value) == size and _holds_samples(value, size):
        return type(value)(value[part])
    items = [_cut(item, size, part) for item in value]
    return type(value)(*items) if hasattr(type(value), "_fields") else type(value)(items)


def _holds_samples(value: Sequence[Any], size: int) -> bool:
    """Return whether a sequence as long as the batch has an item for each sample.

    Two columns of a batch of two are none; of a list of tensors, one may be as long by chance.
    """
    columns = sum(_is_column(item, size) for item in value)
    may_be_chance = isinstance(value, list) and len({type(item) for item in value}) == 1
    return not columns or (may_be_chance and columns < size)


def _is_column(value: object, size: int) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() > 0 and value.shape[0] == size
