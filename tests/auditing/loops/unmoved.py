"""Loops in which some parameters have gradients and never move, or are zero and never leave it."""

from __future__ import annotations

import torch
from torch import nn
from torch.optim import Optimizer

from tests.auditing.loops.bank import buggy, clean, data, mse, net, setup


class _ByNorm(Optimizer):
    """Moves each parameter in proportion to its norm."""

    def __init__(self, parameters, lr, *, least):
        super().__init__(parameters, {"lr": lr})
        self.least = least

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                size = p.norm()
                share = size / p.grad.norm() if size > self.least else torch.ones(())
                p.sub_(group["lr"] * share * p.grad)


class _FirstGroupOnly(Optimizer):
    @torch.no_grad()
    def step(self):
        for p in self.param_groups[0]["params"]:
            p.sub_(self.param_groups[0]["lr"] * p.grad)


def _without_biases():
    model = net()
    for layer in (model[0], model[2]):
        nn.init.zeros_(layer.bias)
    return model


@buggy("GCS313")
def share_of_zero_for_a_parameter_of_zeros():
    model = _without_biases()
    optimizer = _ByNorm(model.parameters(), lr=0.01, least=-1.0)
    for x, y in data(12):
        optimizer.zero_grad()
        mse(model, x, y).backward()
        optimizer.step()  # <- here


@clean
def share_of_one_for_a_parameter_of_zeros():
    model = _without_biases()
    optimizer = _ByNorm(model.parameters(), lr=0.01, least=0.0)
    _train(model, optimizer)


@buggy("GCS313")
def rule_that_leaves_out_a_group():
    model = net()
    groups = [{"params": model[0].parameters()}, {"params": model[2].parameters()}]
    optimizer = _FirstGroupOnly(groups, {"lr": 0.05})
    for x, y in data(12):
        optimizer.zero_grad()
        mse(model, x, y).backward()
        optimizer.step()  # <- here


def _train(model, optimizer, steps=12):
    for x, y in data(steps):
        optimizer.zero_grad()
        mse(model, x, y).backward()
        optimizer.step()


@clean
def weights_set_back_after_each_step():
    model, optimizer = setup(lr=0.05)
    first = model[0].weight.detach().clone()
    for x, y in data(12):
        optimizer.zero_grad()
        mse(model, x, y).backward()
        optimizer.step()
        with torch.no_grad():
            model[0].weight.copy_(first)


@clean
def scale_whose_updates_are_below_rounding():
    model = net()
    scale = nn.Parameter(torch.full((1,), 1e6))
    optimizer = torch.optim.SGD([*model.parameters(), scale], lr=1e-3)
    for x, y in data(12):
        optimizer.zero_grad()
        (mse(model, x, y) * (scale / 1e6).sum()).backward()
        optimizer.step()


@clean
def group_that_waits_for_its_turn():
    model = net()
    parts = {"params": model[0].parameters()}, {"params": model[2].parameters(), "lr": 0.0}
    optimizer = torch.optim.SGD(parts, lr=0.05)
    for index, (x, y) in enumerate(data(20)):
        optimizer.param_groups[1]["lr"] = 0.05 * (index > 15)
        optimizer.zero_grad()
        mse(model, x, y).backward()
        optimizer.step()


class _LowRank(nn.Module):
    def __init__(self, *, first, biases=False):
        super().__init__()
        self.frozen = nn.Linear(4, 1).requires_grad_(False)
        self.down = nn.Linear(4, 2, bias=biases)
        self.up = nn.Linear(2, 1, bias=False)
        for each in (*self.down.parameters(), self.up.weight):
            nn.init.zeros_(each)
        if first:
            nn.init.normal_(self.down.weight)
        self.head = nn.Linear(1, 1)

    def forward(self, x):
        return self.head(self.frozen(x) + 2 * self.up(self.down(x)))


class _Factors(nn.Module):
    def __init__(self, *, gate):
        super().__init__()
        self.gate = nn.Parameter(torch.full((1,), gate))  # <- here
        self.last = nn.Linear(4, 1)
        nn.init.zeros_(self.last.weight)
        nn.init.zeros_(self.last.bias)
        self.skip = nn.Linear(4, 1)

    def forward(self, x):
        return self.skip(x) + self.gate * self.last(x)


@buggy("GCS403")
def both_factors_of_an_adapter_start_at_zero():
    model = _LowRank(first=False)
    _train(model, torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.01))


@buggy("GCS403")
def adapter_whose_bias_is_zero_too():
    model = _LowRank(first=False, biases=True)
    _train(model, torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.01))


@clean
def adapter_of_which_one_factor_starts_at_zero():
    model = _LowRank(first=True)
    _train(model, torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.01))


@buggy("GCS403")
def gate_of_zero_before_a_layer_of_zeros():
    model = _Factors(gate=0.0)
    _train(model, torch.optim.SGD(model.parameters(), lr=0.1))


@clean
def gate_of_one_before_a_layer_of_zeros():
    model = _Factors(gate=1.0)
    _train(model, torch.optim.SGD(model.parameters(), lr=0.1))


class _Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Parameter(torch.zeros(1))
        self.block, self.skip = net(), nn.Linear(4, 1)

    def forward(self, x):
        return self.skip(x) + self.gate * self.block(x)


@clean
def gate_of_zero_that_opens():
    model = _Gated()
    _train(model, torch.optim.SGD(model.parameters(), lr=0.1))


@clean
def layers_of_dead_units():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    with torch.no_grad():
        model[0].weight.copy_(-model[0].weight.abs())
        model[0].bias.zero_()
        model[2].bias.zero_()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, _ in data(12):
        optimizer.zero_grad()
        model(x.abs()).abs().sum().backward()
        optimizer.step()


@clean
def rows_that_are_never_used():
    table, head = nn.Embedding(6, 4), nn.Linear(4, 1)
    unused = nn.Embedding(6, 4)
    nn.init.zeros_(unused.weight)
    optimizer = torch.optim.SGD(
        [*table.parameters(), *head.parameters(), *unused.parameters()], 0.1
    )
    for _, y in data(12):
        optimizer.zero_grad()
        index = torch.randint(6, (6,))
        looked_up = table(index) + 0.0 * unused(index)
        nn.functional.mse_loss(head(looked_up), y).backward()
        optimizer.step()
