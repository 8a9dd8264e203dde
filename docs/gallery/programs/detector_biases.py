"""A detection head's biases are set through a view.

Report: https://github.com/DataXujing/YOLO-v5/issues/23

Object detectors start from biases that say how rare objects are. This one views the bias of its last
convolution as one row for each anchor and adds to a column of that. The view is still the parameter: a
leaf that requires grad. torch had let it pass for years and refuses it since; the advice that people
passed on was to install an older torch.
"""

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
