import torch
from torch import nn


def make_head(features, classes):
    head = nn.Linear(features, classes)
    with torch.no_grad():
        head.weight.mul_(0.1)
        head.bias[0] = 2.0
    return head
