"""Tensors: memory, versions, views, hooks."""

# ruff: noqa: SLF001 - private names are what this package is for
# pyright: reportAttributeAccessIssue=false
# (torch's stubs leave some of them out)
from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, cast

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor
    from torch.autograd.graph import Node

__all__ = [
    "flattened",
    "gradient_hooks",
    "has_gradient_hooks",
    "is_view",
    "node_of",
    "node_of_gradient",
    "sparse_coo_parts",
    "storage_address",
    "storage_key",
    "version_of",
]


def storage_key(tensor: torch.Tensor) -> int | None:
    """Return a number that is the same for tensors that share memory, while they live (torch 2.13).

    None for tensors without a storage of their own: sparse tensors and wrapper subclasses.
    """
    try:
        return storage_address(tensor.untyped_storage()) or None
    except (NotImplementedError, RuntimeError):
        return None


storage_address: Callable[[torch.UntypedStorage], int] = (
    operator.attrgetter("_cdata")
    if hasattr(torch.UntypedStorage, "_cdata")
    else operator.methodcaller("data_ptr")
)
"""Return the address of a storage object, which no other has while it lives (torch 2.13).

Where that is missing, the address of the data stands in. Not a function of Python's own, because it
is called for each saved tensor.
"""


version_of: Callable[[Tensor], int] = operator.attrgetter("_version")
"""Return the version counter of a tensor, which in-place operations move (torch 2.13).

Raises RuntimeError for a tensor made under ``torch.inference_mode``, which keeps no counter. Not a
function of Python's own, because it is called twice for each saved tensor.
"""

is_view: Callable[[Tensor], bool] = operator.methodcaller("_is_view")
"""Return whether autograd knows this tensor as a view of another (torch 2.13)."""


def node_of(tensor: Tensor) -> Node | None:
    """Return the node that made a tensor, whoever's it is; None for a leaf.

    None, too, for an object whose C++ tensor is undefined, which torch 2.6 refuses to ask.
    """
    try:
        return tensor.grad_fn
    except RuntimeError:
        return None


def node_of_gradient(tensor: Tensor) -> Node | None:
    """Return the node that made the ``.grad`` of a leaf, as ``backward(create_graph=True)`` does.

    None as for ``node_of``, and where there is no gradient.
    """
    try:
        gradient = tensor.grad if tensor.requires_grad and tensor.grad_fn is None else None
    except RuntimeError:
        return None
    return None if gradient is None else node_of(gradient)


def gradient_hooks(tensor: Tensor) -> tuple[Any, ...]:
    """Return the hooks on the gradient of a tensor, whoever's it is (torch 2.6 to 2.15).

    None of them where torch can't tell, and as for ``node_of``.
    """
    try:
        return tuple((getattr(tensor, "_backward_hooks", None) or {}).values())
    except RuntimeError:
        return ()


def sparse_coo_parts(tensor: Tensor) -> tuple[Tensor, Tensor]:
    """Return indices and values of a sparse COO tensor as they are stored (torch 2.13).

    The public names refuse a tensor that is not coalesced; without the private ones such a tensor
    is coalesced.
    """
    if tensor.is_coalesced() or not hasattr(tensor, "_indices"):
        tensor = tensor.coalesce()
        return tensor.indices(), tensor.values()
    return tensor._indices(), tensor._values()


def has_gradient_hooks(tensor: Tensor) -> bool:
    """Return whether anybody registered a hook on the gradient of this tensor (torch 2.13).

    False where torch can't tell.
    """
    names = ("_backward_hooks", "_post_accumulate_grad_hooks")
    return any(getattr(tensor, name, None) for name in names)


def flattened(tensors: Sequence[Tensor]) -> Tensor:
    """Return the elements of dense tensors of one dtype and device, one after another (torch 2.13).

    A third of the time of ``torch.cat`` of ``reshape(-1)`` of each, which is the fallback.
    """
    flatten = getattr(torch._utils, "_flatten_dense_tensors", None)
    if flatten is None:
        return torch.cat([tensor.reshape(-1) for tensor in tensors])
    return cast("Tensor", flatten(tensors))
