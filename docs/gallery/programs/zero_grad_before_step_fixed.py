"""zero_grad_before_step.py, corrected."""

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
        optimizer.step()
        optimizer.zero_grad()
    print("moved:", not torch.equal(before, model.weight))


if __name__ == "__main__":
    main()
