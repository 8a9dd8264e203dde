"""What the loops of the connectivity tests are made of."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as everybody writes it
from torch.utils.checkpoint import checkpoint

STEPS = 6


def data(steps=STEPS):
    for _ in range(steps):
        yield torch.randn(6, 4), torch.randint(0, 3, (6,))


def sgd(*modules):
    return torch.optim.SGD([p for m in modules for p in m.parameters()], lr=0.01)


def update(optimizer, loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def make_net():
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


class Unused(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, x):  # <- here
        return self.head(self.first(self.first(x).relu()))


def fit(make):
    def loop():
        net = make()
        optimizer = sgd(net)
        for x, y in data():
            update(optimizer, F.cross_entropy(net(x), y))

    loop.__name__ = make.__name__
    loop.source = make
    return loop


class Checkpointed(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.stem, self.head = nn.Linear(4, 4), nn.Linear(4, 3)
        self.reentrant = reentrant

    def forward(self, x):
        hidden = checkpoint(self.stem, x, use_reentrant=self.reentrant)  # <- here
        return self.head(hidden)
