"""The forward goes past DistributedDataParallel

Report: https://github.com/jingyaogong/minimind/issues/853

The policy is wrapped for several GPUs, and the trainer unwraps it again before the forward that makes the
loss. It is the wrapper's forward that prepares the reduction of gradients: without it each rank steps with its
own. Only rank 0 is saved, so the run looks like any other, trained on a part of the data.

Run: torchrun --nproc-per-node 2 --no-python gradcheck-suite audit forward_past_ddp.py
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def train(steps=6):
    model = DistributedDataParallel(nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(dist.get_rank())
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model.module(torch.randn(4, 3)).pow(2).mean()
        loss.backward()
        optimizer.step()
    return model


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    weight = train().module.weight.detach()
    weights = [torch.zeros(1, 3) for _ in range(2)]
    dist.all_gather(weights, weight)
    if dist.get_rank() == 0:
        print("replicas equal:", torch.equal(*weights))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
