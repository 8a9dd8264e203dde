"""validation_with_graphs.py, corrected."""

from __future__ import annotations

import torch
from torch import nn


def validation_step(model, x, y):
    model.eval()
    with torch.no_grad():
        predicted = model(x)
        return nn.functional.mse_loss(predicted, y), predicted


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(2):
        model.train()
        for _ in range(4):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(torch.randn(4, 8)), torch.randn(4, 1)).backward()
            optimizer.step()
        losses = [
            validation_step(model, torch.randn(4, 8), torch.randn(4, 1))[0].item() for _ in range(5)
        ]
    print(f"validation {sum(losses) / 5:.3f}")


if __name__ == "__main__":
    main()
