"""running_loss.py, corrected."""

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
        running_loss += loss.item()
    print(f"mean loss {running_loss / batches:.3f}")


if __name__ == "__main__":
    main()
