"""Validation that never switches the mode.

Report: https://github.com/wolny/pytorch-3dunet/issues/53

The trainer validates under `no_grad`, which saves memory and nothing else: the model stays in training mode.
With group normalisation, as its authors used it, that was all the same. The reporter switched to batch
norm, and predictions made no sense any more.
"""

from __future__ import annotations

import torch
from torch import nn


class Trainer:
    def __init__(self):
        self.model = nn.Sequential(
            nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 1)
        )
        self.optimizer = torch.optim.Adam(self.model.parameters())

    def validate(self):
        losses = []
        with torch.no_grad():
            for _ in range(3):
                x, y = torch.randn(16, 8), torch.randn(16, 1)
                losses.append(nn.functional.mse_loss(self.model(x), y).item())
        return sum(losses) / len(losses)

    def train(self, epochs=3):
        for _ in range(epochs):
            for _ in range(4):
                x, y = torch.randn(16, 8), torch.randn(16, 1)
                self.optimizer.zero_grad()
                nn.functional.mse_loss(self.model(x), y).backward()
                self.optimizer.step()
            print(f"validation {self.validate():.3f}")


def main():
    torch.manual_seed(0)
    Trainer().train()


if __name__ == "__main__":
    main()
