"""Dropout that does not know of evaluation.

Report: https://github.com/rixwew/pytorch-fm/issues/21

`F.dropout(x, p)` is a function: it has no mode, and drops unless it is told `training=False`. A library of
recommender models used it so, and every score that was reported came with noise.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.score = nn.Linear(8, 1)
        self.out = nn.Linear(8, 1)

    def forward(self, x):
        weights = F.softmax(self.score(x), dim=1)
        weights = F.dropout(weights, p=0.2)
        return self.out((weights * x).sum(dim=1))


def main():
    torch.manual_seed(0)
    model = Attention().eval()
    x = torch.randn(2, 5, 8)
    with torch.no_grad():
        print("same twice:", torch.equal(model(x), model(x)))


if __name__ == "__main__":
    main()
