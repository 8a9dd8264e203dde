"""Several processes (GCS8xx)."""

from __future__ import annotations

from gradcheck_suite.catalogue._entry import Entry
from gradcheck_suite.severity import Severity

RANKS_DIVERGED = Entry(
    code="GCS801",
    slug="ranks-diverged",
    severity=Severity.ERROR,
    in_source=False,
    at_run_time=False,
    title="Parameters differ between ranks that should be equal",
    what="""
Data-parallel processes hold different values of what should be the same parameter.
""",
    why="""
Nothing raises. Gradients are averaged over points in different places of the weight space, so the
update suits none of them. A checkpoint of rank 0 alone hides it. Usual causes: weights that
are initialized under different seeds and never broadcast, a step that one rank skips, a parameter
changed outside the optimizer on one rank.
""",
    example="""\
import torch
import torch.distributed as dist


def train(model, loader):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader:
        optimizer.zero_grad()
        (model(x) - y).pow(2).mean().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
        optimizer.step()
""",
    instead="""\
import torch
import torch.distributed as dist


def train(model, loader):
    for parameter in model.parameters():
        dist.broadcast(parameter.detach(), src=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader:
        optimizer.zero_grad()
        (model(x) - y).pow(2).mean().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
        optimizer.step()
""",
    detection="""
Nothing looks for it yet: gather a checksum of each parameter from all ranks, with
`torch.distributed.all_gather`, and compare them.

Severity: error.
""",
)

GRADIENT_NOT_SYNCHRONIZED = Entry(
    code="GCS802",
    slug="gradient-not-synchronized",
    severity=Severity.ERROR,
    in_source=True,
    at_run_time=False,
    title="An optimizer steps on gradients that were not reduced over ranks",
    what="""
With `DistributedDataParallel` a step uses each rank's own gradient: the last micro-batch of a
window is still under `no_sync()`, the forward goes through `ddp.module`, or `autograd.grad` is
used in place of `backward`.
""",
    why="""
Nothing raises; every rank trains a model of its own (GCS801). It is the forward that decides: one
that runs under `no_sync()` is not reduced even if its backward comes after the block, and one that
runs before the block is reduced even if its backward is inside.
""",
    example="""\
from torch.nn.parallel import DistributedDataParallel as DDP


def train(ddp: DDP, optimizer, loader, window=2):
    for i, (x, y) in enumerate(loader):
        with ddp.no_sync():
            loss = (ddp(x) - y).pow(2).mean() / window  # GCS802
            loss.backward()
        if (i + 1) % window == 0:
            optimizer.step()
            optimizer.zero_grad()
""",
    instead="""\
from contextlib import nullcontext


def train(ddp, optimizer, loader, window=2):
    for i, (x, y) in enumerate(loader):
        last = (i + 1) % window == 0
        with nullcontext() if last else ddp.no_sync():
            loss = (ddp(x) - y).pow(2).mean() / window
            loss.backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()
""",
    detection="""
In source: all forwards of a model in a function that has its backward and its step are under
`no_sync()`, or go through the `module` of a `DistributedDataParallel`, and nothing else is handed
the model.

Severity: error.
""",
)

ENTRIES = (
    RANKS_DIVERGED,
    GRADIENT_NOT_SYNCHRONIZED,
)
