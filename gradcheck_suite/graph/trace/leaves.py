"""Know leaves and stored tensors by the names that the model gives them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import torch

from gradcheck_suite._torch_compat import storage_key
from gradcheck_suite.errors import UsageError
from gradcheck_suite.graph.model import Leaf, TensorType
from gradcheck_suite.graph.trace.module_tree import Member, members_of, modules_within

__all__ = [
    "ModelNames",
    "leaf_of",
    "names_among",
    "names_of",
    "plain_shape",
    "tensor_type",
    "type_of",
]


@dataclass(frozen=True, slots=True)
class ModelNames:
    """Names of a model's parameters by ``id``, and who owns which storage."""

    parameters: Mapping[int, tuple[str, ...]]
    storage_owners: Mapping[int, str]


def names_of(model: object) -> ModelNames:
    """Collect the names in ``model``; none for None. A tied parameter has several names.

    Raises:
        UsageError: ``model`` is not a module.
    """
    if model is None:
        return ModelNames({}, {})
    if not isinstance(model, torch.nn.Module):
        raise UsageError(
            f"model= expected a torch.nn.Module, got {type(model).__name__}; "
            "leave it out to trace tensors without names"
        )
    return names_among(members_of(model, modules_within(model)))


def names_among(members: Iterable[Member]) -> ModelNames:
    """Collect the names of parameters, and who owns which storage."""
    names: dict[int, tuple[str, ...]] = {}
    owners: dict[int, str] = {}
    for kind, name, tensor in members:
        if kind == "parameter":
            names[id(tensor)] = (*names.get(id(tensor), ()), name)
        if not torch.nn.parameter.is_lazy(tensor):
            key = storage_key(tensor)
            if key is not None:
                owners.setdefault(key, f"{kind} {name}")
    return ModelNames(names, owners)


def tensor_type(tensor: torch.Tensor) -> TensorType | None:
    """Tell shape and dtype, or None where the shape is not made of plain numbers."""
    shape = plain_shape(tensor)
    return None if shape is None else type_of(shape, tensor.dtype)


def plain_shape(tensor: torch.Tensor) -> tuple[int, ...] | None:
    """Return the shape, or None where a size is symbolic or the tensor has no single shape."""
    try:
        return tuple(size if type(size) is int else int(size) for size in tensor.shape)
    except (AttributeError, RuntimeError, TypeError):  # nested tensors raise each of them
        return None


@lru_cache(maxsize=4096)
def type_of(shape: tuple[int, ...], dtype: torch.dtype) -> TensorType:
    """Return the type as plain data; equal types are one object, as graphs have few of them."""
    return TensorType(shape, str(dtype).removeprefix("torch."))


def leaf_of(variable: torch.Tensor, names: ModelNames) -> Leaf:
    """Describe the tensor in whose ``.grad`` a path of backward ends."""
    known = names.parameters.get(id(variable), ())
    return Leaf(
        names=known,
        type=tensor_type(variable),
        is_parameter=bool(known) or isinstance(variable, torch.nn.Parameter),
    )
