"""detector_biases.py, corrected."""

from __future__ import annotations

import math

import torch
from torch import nn


class Head(nn.Module):
    def __init__(self, anchors=3, classes=4):
        super().__init__()
        self.anchors = anchors
        self.conv = nn.Conv2d(8, anchors * (5 + classes), 1)
        self.set_biases()

    def set_biases(self):
        with torch.no_grad():
            bias = self.conv.bias.view(self.anchors, -1)
            bias[:, 4] += math.log(8 / 1600)
            bias[:, 5:] += math.log(0.6 / 3.01)

    def forward(self, x):
        return self.conv(x)


def main():
    torch.manual_seed(0)
    print(Head()(torch.randn(1, 8, 4, 4)).shape)


if __name__ == "__main__":
    main()
