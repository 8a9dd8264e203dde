"""The wrong micro-batch is synchronised.

Report: https://github.com/modelscope/FunASR/pull/3472

Gradients are accumulated over a window, and `no_sync()` saves the traffic of all but one micro-batch. The
condition was off by one: the first of a window was synchronised, and the last, before the step, was not. Each
rank stepped with gradients of its own, and the replicas drifted apart.

Run: torchrun --nproc-per-node 2 --no-python gradcheck-suite audit no_sync_off_by_one.py
"""

from __future__ import annotations

from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def train(model, optimizer, steps=8, window=2):
    for index in range(steps):
        synchronised = index % window == 0
        with nullcontext() if synchronised else model.no_sync():
            (model(torch.randn(4, 3)).pow(2).mean() / window).backward()
        if (index + 1) % window == 0:
            optimizer.step()
            optimizer.zero_grad()


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(dist.get_rank())
    train(model, optimizer)
    weights = [torch.zeros(1, 3) for _ in range(2)]
    dist.all_gather(weights, model.module.weight.detach())
    if dist.get_rank() == 0:
        print("replicas equal:", torch.equal(*weights))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
