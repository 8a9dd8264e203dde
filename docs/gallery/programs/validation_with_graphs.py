"""Validation that records what nobody will use.

Report: https://github.com/skorch-dev/skorch/issues/218

When torch 0.4 took `volatile` away, the validation step of a library lost its replacement: the model was in
evaluation mode, but every batch still recorded a graph. A newcomer ran out of memory in validation, batch
after batch, although training itself had fitted.
"""

from __future__ import annotations

import torch
from torch import nn


def validation_step(model, x, y):
    model.eval()
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
