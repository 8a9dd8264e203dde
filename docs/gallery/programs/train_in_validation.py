"""Validation in training mode.

Report: https://github.com/pliang279/MultiBench/issues/26

The validation loop calls `eval()`, and for each batch `train()` again. Its numbers are those of a network
with dropout, and its batches move the running statistics of batch norm, which the test then uses.
"""

from __future__ import annotations

import torch
from torch import nn


def validate(model, batches):
    model.eval()
    total = 0.0
    with torch.no_grad():
        for x, y in batches:
            model.train()
            total += nn.functional.mse_loss(model(x), y).item()
    return total / len(batches)


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.5), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    held_out = [(torch.randn(16, 8), torch.randn(16, 1)) for _ in range(4)]
    for _ in range(3):
        model.train()
        for _ in range(4):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(torch.randn(16, 8)), torch.randn(16, 1)).backward()
            optimizer.step()
        validate(model, held_out)
    print("same twice:", validate(model, held_out) == validate(model, held_out))


if __name__ == "__main__":
    main()
