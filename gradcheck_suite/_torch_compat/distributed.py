"""The store of torch.distributed that the processes of a job share."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch

__all__ = [
    "another_connection",
    "communicating_methods",
    "connect_to",
    "default_store",
    "file_of",
    "gathered_parameters",
    "has_state_in_parts",
    "is_saved",
    "is_sharded",
    "is_shared",
    "part_of_rank",
    "reduces_by_hook",
    "reshard",
    "waiting_shards",
]

# It says of most of its names that it does not export them.
dist: Any = torch.distributed

_ANSWERS_WITHIN = timedelta(seconds=10)
"""What a store may take for an answer before it counts as gone."""


def default_store() -> Any | None:
    """Return the store that the default process group was made with, or None.

    Torch 2.13 keeps it behind ``distributed_c10d._get_default_store``, in one or several stores
    that only put a prefix before each key.
    """
    get = getattr(dist.distributed_c10d, "_get_default_store", None)
    if get is None or not dist.is_initialized():
        return None
    try:
        store = get()
    except (RuntimeError, ValueError):
        return None
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    return store


def is_shared(store: Any) -> bool:
    """Return whether several processes can be connected to a store."""
    return isinstance(store, (dist.TCPStore, dist.FileStore))


def file_of(store: Any) -> str | None:
    """Return the file that a store is, or None for one that a process serves."""
    return str(store.path) if isinstance(store, dist.FileStore) else None


def another_connection(store: Any) -> Any:
    """Return a store with the same contents whose calls do not wait for those of ``store``.

    Torch 2.13 has ``Store.clone`` for it, torch 2.6 has not.
    """
    if isinstance(store, dist.FileStore):
        return dist.FileStore(store.path)
    return connect_to(store.host, store.port)


def connect_to(host: str, port: int) -> Any:
    """Connect to a store that another process, or this one, serves at this address."""
    store = dist.TCPStore(
        host, port, is_master=False, wait_for_workers=False, timeout=_ANSWERS_WITHIN
    )
    store.set_timeout(_ANSWERS_WITHIN)
    return store


def communicating_methods() -> tuple[str, ...]:
    """Return the names of the methods of a process group that send or receive tensors.

    Every function of ``torch.distributed`` calls one of them, by whatever name a program has
    imported it (``distributed_c10d.py``, torch 2.13); the reducer of DistributedDataParallel and
    functional collectives call none.
    """
    return tuple(name for name in _COMMUNICATING if hasattr(dist.ProcessGroup, name))


_COMMUNICATING = (
    "_allgather_base",
    "_reduce_scatter_base",
    "all_gather_single",
    "all_to_all_single",
    "allgather",
    "allgather_coalesced",
    "allgather_into_tensor_coalesced",
    "allreduce",
    "allreduce_coalesced",
    "alltoall",
    "alltoall_base",
    "broadcast",
    "gather",
    "recv",
    "recv_anysource",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_tensor_coalesced",
    "scatter",
    "send",
)


def is_saved(module: Any, buffer: str) -> bool:
    """Return whether a checkpoint of a module has this buffer of its own (``persistent=True``).

    ``state_dict()`` would tell too, and calls hooks of the program's.
    """
    return buffer not in getattr(module, "_non_persistent_buffers_set", ())


def is_sharded(tensor: Any) -> bool:
    """Return whether a parameter is a part of one that lies on several ranks.

    DTensors are (FSDP2, tensor parallelism), and what FSDP1 has flattened, which it marks
    (``_fsdp_flattened``, torch 2.6 to 2.13).
    """
    return hasattr(tensor, "device_mesh") or bool(getattr(tensor, "_fsdp_flattened", False))


def part_of_rank(tensor: Any) -> Any:
    """Return what this rank has of a DTensor, or the tensor itself.

    ``DTensor._local_tensor``, torch 2.6 to 2.13; ``to_local()`` may record and wait. A write to the
    whole moves the whole's version alone, and what FSDP2 adds to the part moves the part's.
    """
    return getattr(tensor, "_local_tensor", tensor)


def reshard(module: Any) -> None:
    """Free what FSDP2 has gathered for a module and those within, which are copies.

    ``FSDPModule.reshard()``, from torch 2.6 on; nothing happens to other modules.
    """
    for each in module.modules():
        if getattr(each, "_get_fsdp_state", None) is not None:
            each.reshard()


def has_state_in_parts(optimizer: Any) -> bool:
    """Return whether each rank keeps a part of an optimizer's state, as ZeRO does."""
    zero = getattr(getattr(dist, "optim", None), "ZeroRedundancyOptimizer", None)
    return zero is not None and isinstance(optimizer, zero)


def reduces_by_hook(wrapped: Any) -> bool:
    """Return whether a DistributedDataParallel reduces by a hook of the program's."""
    return bool(getattr(wrapped, "_comm_hooks", ()))


def gathered_parameters(module: Any) -> list[tuple[Any, Any]]:
    """Return what FSDP2 gathers of a module itself: whole parameters, each with its shard.

    A forward of that module computes with the whole ones, which are the leaves of its graph; those
    of an optimizer are the shards (``_fully_shard/_fsdp_param.py``, torch 2.6 to 2.13).
    """
    pairs = (
        (getattr(each, "_unsharded_param", None), each.sharded_param)
        for group in _groups_of(module)
        for each in getattr(group, "fsdp_params", ())
    )
    return [(whole, shard) for whole, shard in pairs if whole is not None]


def waiting_shards(module: Any) -> list[Any]:
    """Return the parameters of an FSDP2 module whose gradients wait, as it is not to reduce them.

    They lie on the whole parameters of its groups (``_fully_shard/_fsdp_param_group.py``, torch 2.6
    to 2.13), where no optimizer sees them. Empty for other modules.
    """
    return [
        each.sharded_param
        for group in _groups_of(module)
        if not getattr(group, "reduce_grads", True)
        for each in getattr(group, "fsdp_params", ())
        if _has_whole_gradient(each)
    ]


def _groups_of(module: Any) -> list[Any]:
    get_state = getattr(module, "_get_fsdp_state", None)
    if get_state is None:
        return []
    state = get_state()
    groups = getattr(state, "_fsdp_param_groups", None)
    if groups is None:
        groups = [getattr(state, "_fsdp_param_group", None)]
    return [group for group in groups if group is not None]


def _has_whole_gradient(shard: Any) -> bool:
    whole = getattr(shard, "_unsharded_param", None)
    return (
        getattr(shard, "unsharded_accumulated_grad", None) is not None
        or getattr(whole, "grad", None) is not None
    )
