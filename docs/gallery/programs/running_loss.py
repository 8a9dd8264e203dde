"""A running loss that keeps every graph.

Report: https://github.com/BatsResearch/labelmodels/issues/4

The epoch's mean loss is summed as a tensor. Each summand drags its graph along, so the memory of every
batch of the epoch stays until the sum is dropped. On a GPU the process ended, without an exception, once
the training set was large enough.
"""

from __future__ import annotations

import torch
from torch import nn


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters())
    running_loss = 0.0
    batches = 40
    for _ in range(batches):
        optimizer.zero_grad()
        loss = model(torch.randn(4, 8)).pow(2).mean()
        loss.backward()
        optimizer.step()
        running_loss += loss
    print(f"mean loss {float(running_loss) / batches:.3f}")


if __name__ == "__main__":
    main()
