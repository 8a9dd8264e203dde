"""no_zero_grad.py, corrected."""

from __future__ import annotations

import torch
from torch import nn


def train_epoch(model, optimizer, criterion, steps=20):
    losses = []
    for _ in range(steps):
        images = torch.randn(4, 1, 8, 8)
        loss = criterion(model(images), images.mean(dim=(1, 2, 3)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return sum(losses) / steps


def main():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 1), nn.Flatten(0)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    print(f"loss {train_epoch(model, optimizer, nn.MSELoss()):.3f}")


if __name__ == "__main__":
    main()
