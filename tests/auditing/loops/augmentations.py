"""Loops that change the data before a model is given them, in place or not."""

from __future__ import annotations

import torch
from torch import nn

from tests.auditing.loops.bank import buggy, clean, net, setup


def _step(model, optimizer, x, y):
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()


def _data():
    return torch.randn(16, 4), torch.randn(16, 1)


@buggy("GCS112")
def features_dropped_in_place():
    x, y = torch.randn(16, 64), torch.randn(16, 1)
    model = nn.Sequential(nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters())

    def drop(x):
        x[:, torch.rand(64) < 0.1] = 0.0  # <- here
        return x

    for _ in range(8):
        _step(model, optimizer, drop(x), y)


@buggy("GCS112")
def noise_added_in_place():
    (x, y), (model, optimizer) = _data(), setup()
    for _ in range(8):
        x += 0.1 * torch.randn_like(x)  # <- here
        _step(model, optimizer, x, y)


@buggy("GCS112")
def batches_that_are_views_are_scaled_in_place():
    (x, y), (model, optimizer) = _data(), setup()
    for _ in range(4):
        for start in (0, 8):
            batch = x[start : start + 8]
            batch.mul_(1 + torch.rand(8, 1))  # <- here
            _step(model, optimizer, batch, y[start : start + 8])


@buggy("GCS112")
def tokens_masked_inside_the_model():
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net()

        def forward(self, x):
            hidden = torch.rand(len(x)) < 0.2
            x[hidden] = 0.0  # <- here
            return self.net(x)

    x, y = _data()
    model = Masked()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(8):
        _step(model, optimizer, x, y)


@clean
def copies_dropped_in_place():
    (x, y), (model, optimizer) = _data(), setup()
    for _ in range(8):
        copy = x.clone()
        copy[:, torch.rand(4) < 0.3] = 0.0
        _step(model, optimizer, copy, y)


@clean
def staging_buffer_filled_anew_and_scaled():
    model, optimizer = setup()
    buffer = torch.empty(16, 4)
    for _ in range(8):
        x, y = _data()
        buffer.copy_(x)
        buffer.sub_(buffer.mean(0)).div_(buffer.std(0))
        _step(model, optimizer, buffer, y)


@clean
def data_normalized_in_place_before_each_epoch():
    (x, y), (model, optimizer) = _data(), setup()
    for _ in range(8):
        x.sub_(x.mean(0))
        x.div_(x.std(0))
        _step(model, optimizer, x, y)


@clean
def missing_values_filled_each_time():
    (x, y), (model, optimizer) = _data(), setup()
    x[3:5] = float("nan")
    for _ in range(8):
        x[torch.isnan(x)] = 0.0
        _step(model, optimizer, x, y)


@clean
def history_whose_rows_are_written():
    model, optimizer = setup()
    history = torch.zeros(16, 4)
    for number in range(8):
        history[number] = torch.randn(4)
        _step(model, optimizer, history, torch.randn(16, 1))


@clean
def time_that_goes_on():
    model = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters())
    now = torch.zeros(1)
    for _ in range(8):
        now += 0.1
        _step(model, optimizer, now, torch.sin(now))


@clean
def chains_that_are_carried_on():
    energy = net()
    optimizer = torch.optim.Adam(energy.parameters())
    chains = torch.randn(16, 4)
    for _ in range(8):
        sample = chains.requires_grad_(True)
        (slope,) = torch.autograd.grad(energy(sample).sum(), sample)
        chains = chains.detach()
        chains.add_(-0.1 * slope + 0.05 * torch.randn_like(chains))
        optimizer.zero_grad()
        (energy(torch.randn(16, 4)).mean() - energy(chains).mean()).backward()
        optimizer.step()
