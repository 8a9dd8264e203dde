import torch
from torch import nn


class Scale(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.full((width,), 0.02))

    def forward(self, x):
        return x * self.weight


def optimizer_of(scale):
    return torch.optim.SGD([scale.weight], lr=0.1)
