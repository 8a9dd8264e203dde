"""Programs of two ranks, wrong and correct ones, each under an audit of its own.

A line that is to be found ends in a comment with its code, its severity if that is no error, and
the ranks if these are not all. Run as a script with the folder for the reports, on each rank.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as programs have it
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: N817 - as above
from torch.optim import SGD, Adam
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

STEPS = 6
WRONG, CORRECT = [], []


def wrong(program):
    WRONG.append(program)
    return program


def correct(program):
    CORRECT.append(program)
    return program


def where(possible, kind):
    """Return the decorator of a program that not every version of torch can run."""
    return kind if possible else lambda program: program


SHARDS = hasattr(torch.cpu.Stream, "record_event")
"""Whether ``fully_shard`` works on the CPU; not in torch 2.6."""


def comparing_state(program):
    program.options = {"compare_optimizer_state": True}
    return program


def network(width=8):
    return nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 2))


def batches(rank, count=STEPS, seed=0):
    generator = torch.Generator().manual_seed(100 * seed + rank)
    for _ in range(count):
        yield torch.randn(6, 4, generator=generator), torch.randn(6, 2, generator=generator)


def average(parameters):
    for parameter in parameters:
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()


@wrong
def seeded_by_rank(rank):
    torch.manual_seed(rank)
    model = network()
    optimizer = SGD(model.parameters(), lr=0.1)  # GCS801 on 1
    for x, y in batches(rank):
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        average(model.parameters())
        optimizer.step()


@wrong
def broadcast_of_a_copy(rank):
    torch.manual_seed(rank)
    model = network()
    for parameter in model.parameters():
        dist.broadcast(parameter.detach().clone(), src=0)
    optimizer = Adam(model.parameters(), lr=0.01)  # GCS801 on 1
    for x, y in batches(rank):
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        average(model.parameters())
        optimizer.step()


@where("init_sync" in inspect.signature(DDP).parameters, wrong)
def wrapped_without_the_first_broadcast(rank):
    torch.manual_seed(rank)
    model = DDP(network(), init_sync=False)
    optimizer = SGD(model.parameters(), lr=0.1)  # GCS801 on 1
    for x, y in batches(rank):
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()


@wrong
def never_wrapped(rank):
    model = network()
    optimizer = SGD(model.parameters(), lr=0.1)
    data = TensorDataset(*map(torch.cat, zip(*batches(0, 8), strict=True)))
    loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data, shuffle=False))
    for x, y in loader:
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()  # GCS802 warning


@wrong
def never_wrapped_and_never_seeded(rank):
    torch.manual_seed(rank)
    model = network()
    optimizer = SGD(model.parameters(), lr=0.1)
    data = TensorDataset(*map(torch.cat, zip(*batches(0, 8), strict=True)))
    loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data, shuffle=False))
    for x, y in loader:
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()  # GCS802 warning


@wrong
def averages_the_loss_alone(rank):
    model = network()
    optimizer = SGD(model.parameters(), lr=0.1)
    for x, y in batches(rank):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        dist.all_reduce(loss.detach().clone())
        optimizer.step()  # GCS802 warning


@wrong
def second_network_is_not_wrapped(rank):
    generator, critic = DDP(network()), network()
    first, second = SGD(generator.parameters(), lr=0.1), SGD(critic.parameters(), lr=0.1)
    for x, y in batches(rank):
        dist.all_reduce(torch.zeros(1))
        first.zero_grad()
        F.mse_loss(generator(x), y).backward()
        first.step()
        second.zero_grad()
        F.mse_loss(critic(x), y).backward()
        second.step()  # GCS802 warning


@wrong
def no_sync_left_open(rank):
    model = DDP(network())
    optimizer = SGD(model.parameters(), lr=0.1)
    with model.no_sync():  # GCS802
        for x, y in batches(rank):
            optimizer.zero_grad()
            F.mse_loss(model(x), y).backward()
            optimizer.step()


@wrong
def no_sync_in_each_micro_batch(rank):
    model = DDP(network())
    optimizer = SGD(model.parameters(), lr=0.1)
    for index, (x, y) in enumerate(batches(rank)):
        with model.no_sync():  # GCS802
            F.mse_loss(model(x), y).backward()
        if index % 2:
            optimizer.step()
            optimizer.zero_grad()


@wrong
def forward_under_no_sync(rank):
    model = DDP(network())
    optimizer = SGD(model.parameters(), lr=0.1)
    for x, y in batches(rank):
        optimizer.zero_grad()
        with model.no_sync():  # GCS802
            loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()


@wrong
def past_the_wrapper(rank):
    model = DDP(network())
    optimizer = SGD(model.parameters(), lr=0.1)
    for x, y in batches(rank):
        optimizer.zero_grad()
        F.mse_loss(model.module(x), y).backward()  # GCS802
        optimizer.step()


@wrong
def autograd_grad_past_the_wrapper(rank):
    model = DDP(network())
    parameters = list(model.parameters())
    optimizer = SGD(parameters, lr=0.1)
    for x, y in batches(rank):
        loss = F.mse_loss(model(x), y)
        for parameter, gradient in zip(
            parameters,
            torch.autograd.grad(loss, parameters),  # GCS802
            strict=True,
        ):
            parameter.grad = gradient
        optimizer.step()


@wrong
def layer_added_after_wrapping(rank):
    model = DDP(network())
    model.module.append(nn.Linear(2, 2))
    optimizer = SGD(model.parameters(), lr=0.1)
    for x, y in batches(rank):
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()  # GCS802


@wrong
def head_beside_the_wrapper(rank):
    model, head = DDP(network()), nn.Linear(2, 2)
    optimizer = SGD([*model.parameters(), *head.parameters()], lr=0.1)
    for x, y in batches(rank):
        optimizer.zero_grad()
        F.mse_loss(head(model(x)), y).backward()
        optimizer.step()  # GCS802 warning


@wrong
def average_forgets_the_biases(rank):
    model = network()
    optimizer = SGD(model.parameters(), lr=0.1)
    for x, y in batches(rank):
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        average(each for each in model.parameters() if each.dim() > 1)
        optimizer.step()  # GCS802 note


@wrong
def skips_a_step_by_its_own_loss(rank):
    model = DDP(network())
    optimizer = SGD(model.parameters(), lr=0.1)
    for index, (x, y) in enumerate(batches(rank)):
        F.mse_loss(model(x), y).backward()
        if rank == 1 and index == 2:
            optimizer.zero_grad()  # GCS801 on 1
            continue
        optimizer.step()
        optimizer.zero_grad()


@wrong
def rate_by_rank(rank):
    model = DDP(network())
    optimizer = SGD(model.parameters(), lr=0.1 * (rank + 1))  # GCS801 on 1
    for x, y in batches(rank):
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()


@wrong
def decay_on_one_rank(rank):
    model = DDP(network())
    decay = 0.1 if rank == 0 else 0.0
    optimizer = Adam(model.parameters(), lr=0.01, weight_decay=decay)  # GCS801 on 1
    for x, y in batches(rank):
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()


@wrong
def scheduler_on_the_main_rank(rank):
    model = DDP(network())
    optimizer = SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)  # GCS320 note on 1
    for x, y in batches(rank):
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
        if rank == 0:
            scheduler.step()  # GCS801 on 0


@wrong
def state_loaded_on_the_main_rank(rank):
    model = DDP(network())
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    if rank == 0:
        state = optimizer.state_dict()
        state["state"] = {
            index: {"momentum_buffer": torch.ones_like(each)}
            for index, each in enumerate(model.parameters())
        }
        optimizer.load_state_dict(state)
    for x, y in batches(rank):
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()  # GCS801 warning on 1


@wrong
@comparing_state
def moments_lost_on_one_rank(rank):
    model = DDP(network())
    optimizer = Adam(model.parameters(), lr=0.01)
    for index, (x, y) in enumerate(batches(rank)):
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        if rank == 1 and index == 1:
            optimizer.state.clear()
        optimizer.step()  # GCS801 on 1


@wrong
def written_on_one_rank(rank):
    model = DDP(network())
    optimizer = SGD(model.parameters(), lr=0.1)
    for x, y in batches(rank):
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
        if rank == 0:
            model.module[2].bias.data.add_(0.01)  # GCS801 on 0


@wrong
def checkpoint_loaded_on_the_main_rank(rank):
    model = DDP(network())
    optimizer = SGD(model.parameters(), lr=0.1)
    saved = network().state_dict()
    for index, (x, y) in enumerate(batches(rank)):
        if rank == 0 and index == 2:
            model.module.load_state_dict(saved)  # GCS801 on 0
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()


@wrong
def weights_clamped_on_one_rank(rank):
    model = DDP(network())
    optimizer = SGD(model.parameters(), lr=0.1)
    for x, y in batches(rank):
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
        if rank == 1:
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.clamp_(-0.1, 0.1)  # GCS801 on 1


@wrong
def clipped_on_one_rank(rank):
    model = DDP(network())
    optimizer = SGD(model.parameters(), lr=0.1)
    for x, y in batches(rank):
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        if rank == 0:
            nn.utils.clip_grad_norm_(model.parameters(), 0.01)  # GCS801 on 0
        optimizer.step()


@wrong
def gradient_scaled_on_one_rank(rank):
    model = DDP(network())
    optimizer = SGD(model.parameters(), lr=0.1)
    for x, y in batches(rank):
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        if rank == 1:
            for parameter in model.parameters():
                parameter.grad.mul_(0.5)  # GCS801 on 1
        optimizer.step()


@where(SHARDS, wrong)
def shards_never_reduced(rank):
    from torch.distributed.fsdp import fully_shard

    model = network()
    fully_shard(model)
    model.set_requires_gradient_sync(False)
    optimizer = Adam(model.parameters(), lr=0.01)
    for x, y in batches(rank):
        F.mse_loss(model(x), y).backward()
        optimizer.step()  # GCS802
        optimizer.zero_grad()


@wrong
def revived_at_random(rank):
    model = DDP(network())
    optimizer = SGD(model.parameters(), lr=0.1)
    torch.manual_seed(rank)
    for x, y in batches(rank):
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
        with torch.no_grad():
            model.module[0].weight[3].normal_()  # GCS801 on 1


class NoisySGD(SGD):
    def step(self, closure=None):
        super().step(closure)
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.add_(0.01 * torch.randn_like(parameter))


@wrong
def noise_of_its_own_in_the_step(rank):
    model = DDP(network())
    optimizer = NoisySGD(model.parameters(), lr=0.1)
    torch.manual_seed(rank)
    for x, y in batches(rank):
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()  # GCS801 warning on 1


@wrong
def tied_over_two_stages(rank):
    words = nn.Embedding(12, 4)
    optimizer = SGD(words.parameters(), lr=0.1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        if rank == 0:
            out = words(torch.arange(8))
            dist.send(out.detach(), 1)
            gradient = torch.empty_like(out)
            dist.recv(gradient, 1)
            out.backward(gradient)
        else:
            given = torch.empty(8, 4)
            dist.recv(given, 0)
            given.requires_grad_()
            F.cross_entropy(given @ words.weight.t(), torch.arange(8) + 4).backward()
            dist.send(given.grad, 0)
        optimizer.step()  # GCS802 note


@wrong
def unused_on_some_ranks(rank):
    trunk = nn.Linear(4, 4)
    heads = nn.ModuleList([nn.Linear(4, 2), nn.Linear(4, 2)])
    parameters = [*trunk.parameters(), *heads.parameters()]
    optimizer = SGD(parameters, lr=0.1)
    for index, (x, y) in enumerate(batches(rank)):
        optimizer.zero_grad()
        F.mse_loss(heads[(rank + index) % 2](trunk(x)), y).backward()
        average(parameters)
        optimizer.step()  # GCS802 warning


class Centred(nn.Module):
    """A head that subtracts a running mean, as in self-distillation."""

    def __init__(self, *, synchronized=False, scale=None):
        super().__init__()
        self.net = network()
        self.synchronized = synchronized
        self.register_buffer("center", torch.zeros(2))
        self.register_buffer("scale", torch.ones(2) if scale is None else scale)

    def forward(self, x):
        out = self.net(x)
        mean = out.detach().mean(0)
        if self.synchronized:
            dist.all_reduce(mean)
            mean = mean / dist.get_world_size()
        if self.training:
            self.center.mul_(0.9).add_(0.1 * mean)
        return (out - self.center) * self.scale


@wrong
def buffers_are_not_broadcast(rank):
    torch.manual_seed(rank)
    model = Centred(synchronized=True, scale=torch.rand(2) + 0.5)
    for parameter in model.parameters():
        dist.broadcast(parameter.data, src=0)
    optimizer = SGD(model.parameters(), lr=0.1)  # GCS801 warning on 1
    for x, y in batches(rank):
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        average(model.parameters())
        optimizer.step()


@wrong
def buffer_written_on_one_rank(rank):
    model = DDP(Centred(synchronized=True), broadcast_buffers=False)
    optimizer = SGD(model.parameters(), lr=0.1)
    for x, y in batches(rank):
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
        if rank == 0:
            model.module.scale.mul_(0.9)  # GCS801 warning on 0


@wrong
def center_of_its_own(rank):
    model = DDP(Centred())
    optimizer = SGD(model.parameters(), lr=0.1)
    for x, y in batches(rank):
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()  # GCS801 note


@wrong
def statistics_that_nobody_makes_equal(rank):
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    model = DDP(model, broadcast_buffers=False)
    optimizer = SGD(model.parameters(), lr=0.1)
    for x, y in batches(rank):
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()  # GCS801 note


@where(SHARDS, wrong)
def shards_never_cleared(rank):
    from torch.distributed.fsdp import fully_shard

    model = network()
    fully_shard(model)
    optimizer = Adam(model.parameters(), lr=0.01)
    for x, y in batches(rank):
        F.mse_loss(model(x), y).backward()
        optimizer.step()  # GCS301


@where(SHARDS, wrong)
def head_of_shards_that_no_optimizer_owns(rank):
    from torch.distributed.fsdp import fully_shard

    model = network()
    fully_shard(model[2])
    fully_shard(model)
    optimizer = Adam(model[:2].parameters(), lr=0.01)  # GCS307 warning
    for x, y in batches(rank):
        F.mse_loss(model(x), y).backward()
        optimizer.step()
        model.zero_grad()


def train(model, rank, optimizer=None, *, count=STEPS, after=lambda: None, before=lambda: None):
    optimizer = optimizer or SGD(model.parameters(), lr=0.1)
    for x, y in batches(rank, count):
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        before()
        optimizer.step()
        after()


@correct
def wrapped(rank):
    train(DDP(network()), rank)


@correct
def options_of_the_wrapper(rank):
    train(DDP(network(), gradient_as_bucket_view=True, static_graph=True), rank)
    train(DDP(network(), find_unused_parameters=True, bucket_cap_mb=1), rank)


@correct
def accumulation(rank):
    model = DDP(network())
    optimizer = SGD(model.parameters(), lr=0.1)
    for index, (x, y) in enumerate(batches(rank)):
        last = index % 2
        with contextlib.nullcontext() if last else model.no_sync():
            F.mse_loss(model(x), y).backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()


@correct
def averaged_by_hand(rank):
    model = network()
    train(model, rank, before=lambda: average(model.parameters()))


@correct
def averaged_flat(rank):
    model = network()

    def flat():
        gradients = [each.grad for each in model.parameters()]
        whole = torch.cat([each.reshape(-1) for each in gradients])
        dist.all_reduce(whole)
        parts = (whole / 2).split([each.numel() for each in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))

    train(model, rank, before=flat)


@correct
def broadcast_then_averaged(rank):
    torch.manual_seed(rank)
    model = network()
    optimizer = SGD(model.parameters(), lr=0.1)
    for parameter in model.parameters():
        dist.broadcast(parameter.data, src=0)
    train(model, rank, optimizer, before=lambda: average(model.parameters()))


@correct
def clipped_and_scheduled(rank):
    model = DDP(network())
    optimizer = Adam(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    train(
        model,
        rank,
        optimizer,
        before=lambda: nn.utils.clip_grad_norm_(model.parameters(), 0.1),
        after=scheduler.step,
    )


@correct
@comparing_state
def states_that_are_compared(rank):
    train(model := DDP(network()), rank, Adam(model.parameters(), lr=0.01))


@correct
@comparing_state
def sharded_optimizer(rank):
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = DDP(network())
    train(model, rank, ZeroRedundancyOptimizer(model.parameters(), Adam, lr=0.01))


@where(SHARDS, correct)
def fully_sharded(rank):
    from torch.distributed.fsdp import fully_shard

    model = network()
    fully_shard(model)
    train(model, rank, Adam(model.parameters(), lr=0.01))


@where(SHARDS, correct)
def shards_cleared_with_zeros(rank):
    from torch.distributed.fsdp import fully_shard

    model = network()
    fully_shard(model)
    optimizer = Adam(model.parameters(), lr=0.01)
    for x, y in batches(rank):
        F.mse_loss(model(x), y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)


@where(SHARDS, correct)
def head_of_shards_with_an_optimizer_of_its_own(rank):
    from torch.distributed.fsdp import fully_shard

    model = network()
    fully_shard(model[2])
    fully_shard(model, reshard_after_forward=False)
    trunk = Adam(model[:2].parameters(), lr=0.01)
    head = SGD(model[2].parameters(), lr=0.01)
    for x, y in batches(rank):
        F.mse_loss(model(x), y).backward()
        trunk.step()
        head.step()
        model.zero_grad()


@where(SHARDS, correct)
def head_of_shards_that_is_stepped_by_hand(rank):
    from torch.distributed.fsdp import fully_shard

    model = network()
    fully_shard(model[2])
    fully_shard(model)
    optimizer = Adam(model[:2].parameters(), lr=0.01)
    for x, y in batches(rank):
        F.mse_loss(model(x), y).backward()
        optimizer.step()
        with torch.no_grad():
            for parameter in model[2].parameters():
                parameter.add_(parameter.grad, alpha=-0.01)
        model.zero_grad()


@where(SHARDS, correct)
def rows_of_an_embedding_on_each_rank(rank):
    from torch.distributed.fsdp import fully_shard

    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(8, 4)
            self.head = nn.Linear(4, 2)

        def forward(self, words):
            return self.head(self.table(words))

    model = Words()
    fully_shard(model)
    optimizer = SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(rank)
    for _ in range(2 * STEPS):
        words = torch.randint(0, 3, (6,), generator=generator)
        F.cross_entropy(model(words), words % 2).backward()
        optimizer.step()
        optimizer.zero_grad()


@where(SHARDS, correct)
def shards_that_accumulate(rank):
    from torch.distributed.fsdp import fully_shard

    model = network()
    fully_shard(model)
    optimizer = Adam(model.parameters(), lr=0.01)
    for index, (x, y) in enumerate(batches(rank)):
        model.set_requires_gradient_sync(bool(index % 2))
        F.mse_loss(model(x), y).backward()
        if index % 2:
            optimizer.step()
            optimizer.zero_grad()


@correct
def tensor_parallel(rank):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import parallel

    mesh = init_device_mesh("cpu", (2,))
    plan = {"0": parallel.ColwiseParallel(), "2": parallel.RowwiseParallel()}
    model = parallel.parallelize_module(network(), mesh, plan)
    train(model, 0, Adam(model.parameters(), lr=0.01))


@correct
def pipelined(rank):
    from torch.distributed import pipelining

    part = nn.Sequential(nn.Linear(4, 4), nn.Tanh()) if rank == 0 else nn.Linear(4, 2)
    stage = pipelining.PipelineStage(part, rank, 2, torch.device("cpu"))
    schedule = pipelining.ScheduleGPipe(stage, n_microbatches=2, loss_fn=F.mse_loss)
    optimizer = Adam(part.parameters(), lr=0.01)
    for x, y in batches(0):
        optimizer.zero_grad()
        if rank == 0:
            schedule.step(x)
        else:
            schedule.step(target=y, losses=[])
        optimizer.step()


@correct
def buffers_of_the_wrapper(rank):
    train(DDP(Centred(synchronized=True)), rank)


@correct
def buffers_averaged_by_hand(rank):
    model = Centred(synchronized=True)
    train(model, rank, before=lambda: average(model.parameters()))


@correct
def synchronized_statistics(rank):
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    train(DDP(model), rank)
    frozen = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8).eval(), nn.Linear(8, 2))
    train(DDP(frozen, broadcast_buffers=False), rank)


@correct
def number_of_the_rank_in_a_buffer(rank):
    model = network()
    model.register_buffer("number", torch.tensor(rank))
    model.register_buffer("seen", torch.full((3,), float(rank)), persistent=False)
    train(model, rank, before=lambda: average(model.parameters()))


@correct
def flattened(rank):
    from torch.distributed.fsdp import FullyShardedDataParallel

    model = FullyShardedDataParallel(network(), device_id=torch.device("cpu"), use_orig_params=True)
    train(model, rank, Adam(model.parameters(), lr=0.01))


@correct
def statistics_of_its_own(rank):
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    train(DDP(model), rank)


@correct
def dropout_of_its_own(rank):
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2)))
    torch.manual_seed(rank)
    train(model, rank)


@correct
def two_wrapped_networks(rank):
    generator, critic = DDP(network()), DDP(nn.Linear(2, 1))
    first, second = Adam(generator.parameters(), lr=0.01), Adam(critic.parameters(), lr=0.01)
    for x, y in batches(rank):
        second.zero_grad()
        (critic(generator(x).detach()) - critic(y)).mean().backward()
        second.step()
        first.zero_grad()
        (-critic(generator(x))).mean().backward()
        first.step()


@correct
def evaluated_on_the_main_rank(rank):
    model = DDP(network())
    average_model = torch.optim.swa_utils.AveragedModel(model.module)

    def evaluate():
        if rank == 0:
            average_model.update_parameters(model.module)
            with torch.no_grad():
                model.module(torch.ones(2, 4))

    train(model, rank, after=evaluate)


@correct
def closure(rank):
    model = DDP(network())
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=2)
    for x, y in batches(rank):

        def again(x=x, y=y):
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            loss.backward()
            return loss

        optimizer.step(again)


@correct
def compressed(rank):
    def halves(_state, bucket):
        sent = bucket.buffer().to(torch.bfloat16).div_(2)
        future = dist.all_reduce(sent, async_op=True).get_future()
        return future.then(lambda done: bucket.buffer().copy_(done.value()[0]))

    model = DDP(network())
    model.register_comm_hook(None, halves)
    train(model, rank)


@correct
def parameters_averaged_now_and_then(rank):
    model = network()
    step = iter(range(STEPS))

    def synchronize():
        if next(step) % 2:
            for parameter in model.parameters():
                dist.all_reduce(parameter.data)
                parameter.data /= 2

    train(model, rank, after=synchronize)


@correct
def stages_of_a_pipeline(rank):
    torch.manual_seed(0)
    stage = nn.Linear(4, 4)
    optimizer = SGD(stage.parameters(), lr=0.1)
    for x, _ in batches(0):
        optimizer.zero_grad()
        if rank == 0:
            out = stage(x)
            dist.send(out.detach(), 1)
            gradient = torch.empty_like(out)
            dist.recv(gradient, 1)
            out.backward(gradient)
        else:
            given = torch.empty(6, 4)
            dist.recv(given, 0)
            given.requires_grad_()
            stage(given).pow(2).mean().backward()
            dist.send(given.grad, 0)
        optimizer.step()


@correct
def members_of_an_ensemble(rank):
    torch.manual_seed(rank)
    train(network(), rank)


@correct
def rates_that_are_compared(rank):
    torch.manual_seed(0)
    model = network()
    train(model, 0, SGD(model.parameters(), lr=0.1 * (rank + 1)))


@correct
def folds_of_a_validation(rank):
    torch.manual_seed(0)
    train(network(), rank)


@correct
def uneven_inputs(rank):
    model = DDP(network())
    with model.join():
        train(model, rank, count=4 + rank)


@correct
def model_on_one_rank_alone(rank):
    if rank == 0:
        train(network(), rank)


def run(folder, only):
    import gradcheck_suite as gs

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for program in (*WRONG, *CORRECT):
        if only and program.__name__ not in only:
            continue
        torch.manual_seed(1)
        report = str(folder / f"{program.__name__}.json")
        with gs.audit(report=report, **getattr(program, "options", {})):
            program(rank)
        dist.barrier()


if __name__ == "__main__":
    run(Path(sys.argv[1]), sys.argv[2:])
