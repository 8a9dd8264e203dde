"""The centres of a loss that no optimizer knows.

Report: https://github.com/KaiyangZhou/pytorch-center-loss/issues/22

Center loss learns one centre for each class: parameters of the loss. The model's parameters go to the
optimizer, and these are forgotten. They get gradients and never move; the loss stays large, and for years
people asked why.
"""

from __future__ import annotations

import torch
from torch import nn


class CenterLoss(nn.Module):
    def __init__(self, classes, features):
        super().__init__()
        self.centers = nn.Parameter(torch.randn(classes, features))

    def forward(self, x, labels):
        return (x - self.centers[labels]).pow(2).sum(dim=1).mean()


def main():
    torch.manual_seed(0)
    model = nn.Linear(8, 2)
    criterion = CenterLoss(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(10):
        optimizer.zero_grad()
        loss = criterion(model(torch.randn(16, 8)), torch.randint(4, (16,)))
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
