"""The examples about several processes, run by two of them over gloo."""

from __future__ import annotations

import subprocess
import sys

import pytest

_WORKER = """
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gradcheck_suite import catalogue

rank, store = int(sys.argv[1]), sys.argv[2]
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=2)


def equal(model):
    weight = model.weight.detach()
    gathered = [torch.zeros_like(weight) for _ in range(2)]
    dist.all_gather(gathered, weight)
    return torch.equal(*gathered)


def names(code, which):
    namespace = {}
    exec(getattr(catalogue.find(code), which), namespace)
    return namespace


def batches():
    torch.manual_seed(rank)
    return [(torch.randn(3, 2), torch.randn(3, 1)) for _ in range(4)]


def report(name, model):
    answer = equal(model)  # every rank has to ask
    if rank == 0:
        print(name, answer)


for which in ("example", "instead"):
    torch.manual_seed(rank)
    model = nn.Linear(2, 1)
    names("GCS801", which)["train"](model, batches())
    report("GCS801 " + which, model)

    model = nn.Linear(2, 1)
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    names("GCS802", which)["train"](ddp, optimizer, batches())
    report("GCS802 " + which, model)


def plainly(loss, ddp):
    loss.backward()


def one_step(loss_of, backward=plainly):
    model = nn.Linear(2, 1)
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    backward(loss_of(ddp, batches()[0][0]), ddp)
    optimizer.step()
    return model


def forward_in_block(ddp, x):
    with ddp.no_sync():
        return ddp(x).sum()


def backward_in_block(loss, ddp):
    with ddp.no_sync():
        loss.backward()


def by_grad(loss, ddp):
    parameters = list(ddp.parameters())
    for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters)):
        parameter.grad = gradient


report("forward in no_sync", one_step(forward_in_block))
report("backward in no_sync", one_step(lambda ddp, x: ddp(x).sum(), backward_in_block))
report("module bypassed", one_step(lambda ddp, x: ddp.module(x).sum()))
report("autograd.grad", one_step(lambda ddp, x: ddp(x).sum(), by_grad))


class Half(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.unused = nn.Linear(2, 1), nn.Linear(2, 1)

    def forward(self, x):
        return self.used(x)


ddp = DistributedDataParallel(Half())
ddp(torch.ones(1, 2)).sum().backward()
try:
    ddp(torch.ones(1, 2))
except RuntimeError as error:
    if rank == 0:
        print("unused parameter", "Expected to have finished reduction in the prior" in str(error))
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    worker = folder / "worker.py"
    worker.write_text(_WORKER, encoding="utf-8")
    processes = [
        subprocess.Popen(
            [sys.executable, str(worker), str(rank), str(folder / "store")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        outputs = [process.communicate(timeout=120) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], outputs
    lines = [line.rpartition(" ") for line in outputs[0][0].splitlines()]
    return {name: answer == "True" for name, _, answer in lines}


@pytest.mark.slow
def test_gcs801_ranks_that_start_apart_stay_apart(answers):
    assert not answers["GCS801 example"]
    assert answers["GCS801 instead"]


@pytest.mark.slow
def test_gcs802_no_sync_over_the_whole_window_lets_ranks_diverge(answers):
    assert not answers["GCS802 example"]
    assert answers["GCS802 instead"]


@pytest.mark.slow
def test_gcs802_it_is_the_forward_that_decides(answers):
    assert not answers["forward in no_sync"]
    assert answers["backward in no_sync"]


def test_gcs802_other_ways_round_the_reduction(answers):
    assert not answers["module bypassed"]
    assert not answers["autograd.grad"]


def test_gcs403_a_layer_without_gradients_stops_data_parallel_training(answers):
    assert answers["unused parameter"]
