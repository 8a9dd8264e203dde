"""where_hides_nan.py, corrected."""

from __future__ import annotations

import torch
from torch import nn


def mean_of_present(values, counts):
    mean = values / torch.where(counts > 0, counts, 1.0)
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
