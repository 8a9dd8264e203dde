"""Loops with one mistake each, and loops that only look like it; all small enough to run at once.

``BUGGY`` maps a name to a code and a loop; the line to be named ends with ``# <- here``. ``CLEAN``
are correct: nothing is to be said of them. The other modules of this package fill both.
"""

from __future__ import annotations

import torch
from torch import nn

BUGGY = {}
CLEAN = {}


def buggy(code):
    def register(loop):
        BUGGY[loop.__name__] = (code, loop)
        return loop

    return register


def clean(loop):
    CLEAN[loop.__name__] = loop
    return loop


def net(*, drop=False, norm=False):
    layers = [nn.Linear(4, 8), nn.Tanh()]
    if drop:
        layers.append(nn.Dropout(0.5))
    if norm:
        layers.append(nn.BatchNorm1d(8))
    return nn.Sequential(*layers, nn.Linear(8, 1))


def setup(kind=torch.optim.SGD, lr=0.01, **options):
    model = net(**options)
    return model, kind(model.parameters(), lr=lr)


def data(count=8):
    for _ in range(count):
        yield torch.randn(6, 4), torch.randn(6, 1)


def mse(model, x, y):
    return nn.functional.mse_loss(model(x), y)


def cpu_scaler(**options):
    return torch.amp.GradScaler("cpu", **{"init_scale": 1024.0, **options})
