"""slice_times_slice.py, corrected."""

from __future__ import annotations

import torch
from torch import nn


class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3)

    def forward(self, x, y):
        x, y = self.conv(x), self.conv(y).flatten()
        x[0, :, 0, 0] = x[0, :, 0, 0].clone() * y
        return x.mean()


def main():
    torch.manual_seed(0)
    Gate()(torch.ones(1, 3, 3, 3), torch.ones(1, 3, 3, 3)).backward()


if __name__ == "__main__":
    main()
