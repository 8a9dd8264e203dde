from __future__ import annotations

import importlib

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from gradcheck_suite._torch_compat import (
    another_connection,
    communicating_methods,
    connect_to,
    default_store,
    file_of,
    gathered_parameters,
    is_saved,
    is_sharded,
    is_shared,
    part_of_rank,
    reduces_by_hook,
    reshard,
    waiting_shards,
)


def test_another_connection_sees_the_same_store(tmp_path):
    served = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    for store in (served, dist.FileStore(str(tmp_path / "store"))):
        assert is_shared(store)
        another_connection(store).set("key", b"1")
        assert store.get("key") == b"1"
    assert connect_to("127.0.0.1", served.port).get("key") == b"1"


def test_a_store_of_one_process_is_not_shared():
    assert not is_shared(dist.HashStore())
    assert not is_shared(None)


def test_the_file_of_a_store_is_known_where_it_is_one(tmp_path):
    assert file_of(dist.FileStore(str(tmp_path / "store"))) == str(tmp_path / "store")
    assert file_of(dist.HashStore()) is None


def test_the_default_store_is_that_of_the_group(tmp_path):
    assert default_store() is None
    store = dist.FileStore(str(tmp_path / "store"))
    dist.init_process_group("gloo", store=dist.PrefixStore("a", store), rank=0, world_size=1)
    try:
        assert default_store().path == store.path
    finally:
        dist.destroy_process_group()
    assert default_store() is None


def test_every_function_that_communicates_calls_one_of_these():
    names = communicating_methods()
    assert {"allreduce", "broadcast", "allgather", "send", "recv"} <= set(names)
    assert all(callable(getattr(dist.ProcessGroup, name)) for name in names)


def test_buffers_that_a_checkpoint_has_are_told_from_others():
    module = nn.BatchNorm1d(2)
    module.register_buffer("cache", torch.ones(1), persistent=False)
    assert [is_saved(module, name) for name in ("running_mean", "cache")] == [True, False]


def test_what_is_flattened_or_distributed_is_sharded():
    parameter = nn.Parameter(torch.ones(2))
    assert not is_sharded(parameter)
    parameter._fsdp_flattened = True
    assert is_sharded(parameter)


@pytest.mark.filterwarnings("ignore:DTensor random operators")
def test_a_rank_has_the_whole_of_a_plain_tensor_and_its_part_of_a_distributed_one():
    plain = torch.ones(2)
    assert part_of_rank(plain) is plain
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        whole = distribute_tensor(plain, mesh, [Shard(0)])
        part = part_of_rank(whole)
        whole += 1
        assert part.tolist() == [2.0, 2.0]
    finally:
        dist.destroy_process_group()


@pytest.mark.skipif(
    not hasattr(torch.cpu.Stream, "record_event"), reason="torch 2.6 shards on accelerators alone"
)
def test_what_was_gathered_is_given_up():
    fully_shard = importlib.import_module("torch.distributed.fsdp").fully_shard
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        module = nn.Sequential(fully_shard(nn.Linear(2, 2), mesh=init_device_mesh("cpu", (1,))))
        with torch.no_grad():
            module(torch.ones(1, 2))
            whole = module[0].weight
            assert not is_sharded(whole)
        reshard(module)
        assert is_sharded(module[0].weight)
        known = [(id(one), id(shard)) for one, shard in gathered_parameters(module[0])]
        assert (id(whole), id(module[0].weight)) in known
        assert gathered_parameters(module) == []
    finally:
        dist.destroy_process_group()


def test_plain_modules_have_neither_hooks_nor_shards():
    assert not reduces_by_hook(nn.Linear(1, 1))
    assert waiting_shards(nn.Linear(1, 1)) == []
