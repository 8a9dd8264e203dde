"""Checks of sharded functions, run on each rank as a script with a folder for what they come to.

A program makes what is to be checked and returns it with its inputs and options.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Partial, Shard, distribute_tensor, parallel
from torch.nn import functional as F  # noqa: N812 - as programs have it

import gradcheck_suite as gs

TWO, FOUR = [], []


def on_two_ranks(program):
    TWO.append(program)
    return program


def on_four_ranks(program):
    FOUR.append(program)
    return program


class TwiceAsMuch(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):  # noqa: ARG004
        return x.clone()

    @staticmethod
    def backward(ctx, grad):  # noqa: ARG004
        return 2.0 * grad


class TwiceOnRankOne(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):  # noqa: ARG004
        return x.clone()

    @staticmethod
    def backward(ctx, grad):  # noqa: ARG004
        return (1.0 + dist.get_rank()) * grad


class Applied(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def network(*inner, kind=torch.float64):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), *inner, nn.Linear(8, 3)).to(kind)


def fully(module, **options):
    from torch.distributed.fsdp import fully_shard

    for each in module.children():
        if any(True for _ in each.parameters()):
            fully_shard(each, **options)
    return fully_shard(module, **options)


def split(module, plan):
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return parallel.parallelize_module(module, mesh, plan)


COLUMNS_AND_ROWS = {"0": parallel.ColwiseParallel(), "2": parallel.RowwiseParallel()}


def data(rank=0, *, kind=torch.float64, requires_grad=False):
    generator = torch.Generator().manual_seed(rank)
    return torch.randn(5, 4, generator=generator, dtype=kind).requires_grad_(requires_grad)


@on_two_ranks
def shards(rank):
    return fully(network()), data(rank, requires_grad=True), {}


@on_two_ranks
def shards_with_statistics_and_dropout(rank):
    return fully(network(nn.BatchNorm1d(8), nn.Dropout(0.5))), data(rank), {}


@on_two_ranks
def shards_in_float32(rank):
    return fully(network(kind=torch.float32)), data(rank, kind=torch.float32), {}


@on_two_ranks
def shards_that_are_kept_whole(rank):
    return fully(network(), reshard_after_forward=False), data(rank), {}


@on_two_ranks
def shards_read_by_a_function(rank):
    model = fully(network())

    def loss(x):
        return {"loss": model(x).square().mean(), "size": torch.tensor(len(x))}

    return loss, data(rank), {}


@on_two_ranks
def sums_in_place_of_means(rank):
    model = fully(network())
    for module in model.modules():
        if hasattr(module, "set_gradient_divide_factor"):
            module.set_gradient_divide_factor(1.0)
    return model, data(rank), {}


@on_two_ranks
def columns_and_rows(rank):
    return split(network(), COLUMNS_AND_ROWS), data(requires_grad=True), {}


@on_two_ranks
def norm_of_a_part_of_the_sequence(rank):
    plan = {
        "0": parallel.SequenceParallel(),
        "1": parallel.PrepareModuleOutput(
            output_layouts=Shard(1), desired_output_layouts=Shard(1), use_local_output=False
        ),
    }
    torch.manual_seed(0)
    model = nn.Sequential(nn.LayerNorm(6), nn.Tanh()).double()
    x = torch.randn(2, 4, 6, dtype=torch.float64)
    return split(model, plan), x[:, 2 * rank : 2 * rank + 2], {}


class Gathered(nn.Module):
    """Reads the whole of a weight, and says what the gradients of its copies are, or does not."""

    def __init__(self, **placements):
        super().__init__()
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        torch.manual_seed(0)
        whole = torch.randn(6, 4, dtype=torch.float64)
        self.weight = nn.Parameter(distribute_tensor(whole, mesh, [Shard(0)]))
        self.placements = placements

    def forward(self, x):
        return F.linear(x, self.weight.full_tensor(**self.placements)).tanh()


@on_two_ranks
def copies_whose_gradients_are_added(rank):
    return Gathered(grad_placements=[Partial()]), data(rank), {}


@on_two_ranks
def copies_whose_gradients_are_not_added(rank):
    return Gathered(), data(rank), {}


@on_two_ranks
def wrong_in_one_function(rank):
    return fully(network(Applied(TwiceAsMuch.apply))), data(rank), {}


@on_two_ranks
def wrong_in_one_function_between_columns_and_rows(rank):
    plan = {"0": parallel.ColwiseParallel(), "3": parallel.RowwiseParallel()}
    return split(network(Applied(TwiceAsMuch.apply)), plan), data(), {}


@on_two_ranks
def wrong_on_one_rank(rank):
    return fully(network(Applied(TwiceOnRankOne.apply))), data(rank), {}


@on_two_ranks
def detached_on_the_way(rank):
    return fully(network(Applied(torch.Tensor.detach))), data(rank), {}


@on_two_ranks
def half_precision(rank):
    from torch.distributed.fsdp import MixedPrecisionPolicy

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    return fully(network(kind=torch.float32), mp_policy=policy), data(kind=torch.float32), {}


@on_two_ranks
def cast_to_float64(rank):
    return fully(network(kind=torch.float32)), data(rank), {"dtype": "float64"}


@on_two_ranks
def more_than_can_be_asked_for(rank):
    options = {"full": True, "forward_mode": True, "time_limit": 60.0}
    return fully(network()), data(rank), options


@on_two_ranks
def other_shapes_on_each_rank(rank):
    return fully(network()), data(rank)[rank:], {}


@on_two_ranks
def other_inputs_on_each_rank(rank):
    return fully(network()), data(rank, requires_grad=rank == 0), {}


@on_two_ranks
def gradients_kept_back(rank):
    model = fully(network())
    model.set_requires_gradient_sync(False)
    return model, data(rank), {}


@on_two_ranks
def flattened(rank):
    from torch.distributed.fsdp import FullyShardedDataParallel

    return FullyShardedDataParallel(network(), device_id=torch.device("cpu")), data(rank), {}


@on_four_ranks
def shards_of_columns_and_rows(rank):
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "model"))
    model = parallel.parallelize_module(network(), mesh["model"], COLUMNS_AND_ROWS)
    return fully_shard(model, mesh=mesh["data"]), data(rank // 2), {}


@on_four_ranks
def shards_and_copies(rank):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("copies", "shards"))
    return fully(network(), mesh=mesh), data(rank), {}


@on_four_ranks
def wrong_shards_of_columns_and_rows(rank):
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "model"))
    plan = {"0": parallel.ColwiseParallel(), "3": parallel.RowwiseParallel()}
    model = parallel.parallelize_module(network(Applied(TwiceAsMuch.apply)), mesh["model"], plan)
    return fully_shard(model, mesh=mesh["data"]), data(rank // 2), {}


def _local(tensor):
    return getattr(tensor, "_local_tensor", tensor).detach().clone()


def _state(target):
    modules = [target] if isinstance(target, nn.Module) else []
    tensors = [each for one in modules for each in (*one.parameters(), *one.buffers())]
    grads = [None if each.grad is None else id(each.grad) for each in tensors]
    return [_local(each) for each in tensors], grads, torch.get_rng_state()


def _is_as_before(before, now):
    same = all(torch.equal(one, two) for one, two in zip(before[0], now[0], strict=True))
    return same and before[1] == now[1] and torch.equal(before[2], now[2])


def told(program, rank):
    target, inputs, options = program(rank)
    if isinstance(target, nn.Module):
        for parameter in list(target.parameters())[:1]:
            parameter.grad = torch.ones_like(parameter)
    before = _state(target)
    try:
        report = gs.check_gradients(target, inputs, **options)
    except gs.UsageError as error:
        return {"refused": str(error)}
    return {
        "verdicts": {one.input: one.status for one in report.verdicts if "size" not in one.output},
        "findings": [[one.code, one.message, one.hint] for one in report.findings],
        "evidence": [dict(one.evidence) for one in report.findings],
        "covered": list(report.summary["covered"]),
        "not_covered": list(report.not_covered),
        "as before": _is_as_before(before, _state(target)),
    }


if __name__ == "__main__":
    dist.init_process_group("gloo")
    here = dist.get_rank()
    for each in TWO if dist.get_world_size() == len("12") else FOUR:
        try:
            text = told(each, here)
        except Exception as error:  # noqa: BLE001 - the test tells
            text = {"raised": f"{type(error).__name__}: {error}"}
        place = Path(sys.argv[1]) / f"{each.__name__}-{here}.json"
        place.write_text(json.dumps(text), encoding="utf-8")
        dist.barrier()
    dist.destroy_process_group()
