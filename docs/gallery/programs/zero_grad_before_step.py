"""Gradients that are cleared just before they are used.

Report: https://github.com/lucidrains/byol-pytorch/issues/93

The trainer accumulates over micro-batches, then clears the gradients, then steps. The optimizer finds
nothing, turn after turn, and says nothing about it: with plain gradients the model stays as it was made.
"""

from __future__ import annotations

import torch
from torch import nn


def main():
    torch.manual_seed(0)
    model = nn.Linear(8, 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
    before = model.weight.detach().clone()
    for _ in range(6):
        for _ in range(2):
            loss = model(torch.randn(4, 8)).pow(2).mean() / 2
            loss.backward()
        optimizer.zero_grad()
        optimizer.step()
    print("moved:", not torch.equal(before, model.weight))


if __name__ == "__main__":
    main()
