"""torch.where hides the NaN, and backward finds it.

Report: https://github.com/pytorch/pytorch/issues/16317

A quotient is computed everywhere, and `where` replaces what came of 0/0. The value is right. In backward the
branch that was not chosen gets a gradient of 0, which is multiplied by the infinite derivative there: NaN, in
one entry, and after the next step in every weight.
"""

from __future__ import annotations

import torch
from torch import nn


def mean_of_present(values, counts):
    mean = values / counts
    return torch.where(counts > 0, mean, torch.zeros_like(mean))


def main():
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    counts = torch.tensor([0.0, 2.0, 3.0])
    for _ in range(3):
        optimizer.zero_grad()
        loss = mean_of_present(model(torch.randn(8, 4)), counts).pow(2).mean()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
