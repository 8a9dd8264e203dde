"""A loss that is read by an index

Report: https://github.com/DagnyT/hardnet/issues/40

Before torch 0.4 a loss was a vector of one element, and `loss.data[0]` was its value. Now it is a number, and
numbers cannot be indexed. It stops every program of that time that one wants to reproduce.
"""

from __future__ import annotations

import torch
from torch import nn


def main():
    torch.manual_seed(0)
    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(torch.randn(4, 8)).pow(2).mean()
        loss.backward()
        optimizer.step()
        print(f"loss {loss.data[0]:.3f}")


if __name__ == "__main__":
    main()
