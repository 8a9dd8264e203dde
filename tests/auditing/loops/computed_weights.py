"""Weights that torch computes from other parameters at each use, and what the program writes."""

from __future__ import annotations

import warnings

import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune

from tests.auditing.loops.bank import buggy, clean, data, mse


def _train(model, steps=4):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for x, y in data(steps):
        optimizer.zero_grad()
        mse(model, x, y).backward()
        optimizer.step()


def _by_hooks(function, layer):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return function(layer)


def _net(apply):
    return nn.Sequential(apply(nn.Linear(4, 6)), nn.Tanh(), apply(nn.Linear(6, 1)))


@buggy("GCS318")
def computed_weight_filled():
    model = _net(parametrizations.weight_norm)
    for layer in (model[0], model[2]):
        layer.weight.data.normal_(0, 0.01)  # <- here
    _train(model)


@buggy("GCS318")
def computed_weight_initialized_by_a_function():
    def initialize(layer):
        if isinstance(layer, nn.Linear):
            nn.init.xavier_uniform_(layer.weight)  # <- here

    model = _net(parametrizations.spectral_norm)
    model.apply(initialize)
    _train(model)


@buggy("GCS318")
def computed_weight_of_a_hook_filled():
    model = _net(lambda layer: _by_hooks(nn.utils.weight_norm, layer))
    model[0].weight.data.normal_(0, 0.01)  # <- here
    _train(model)


@buggy("GCS318")
def pruned_weight_copied_into():
    model = _net(lambda layer: layer)
    kept = model[0].weight.detach().clone()
    prune.random_unstructured(model[0], "weight", 0.3)
    with torch.no_grad():
        model[0].weight.copy_(kept)  # <- here
    _train(model)


@clean
def weight_filled_before_it_is_computed():
    model = _net(lambda layer: layer)
    for layer in (model[0], model[2]):
        layer.weight.data.normal_(0, 0.01)
        parametrizations.weight_norm(layer)
    _train(model)


@clean
def computed_weight_assigned():
    model = _net(parametrizations.weight_norm)
    model[0].weight = torch.randn(6, 4) / 10
    _train(model)


@clean
def what_a_weight_is_computed_from_filled():
    model = _net(parametrizations.weight_norm)
    nn.init.ones_(model[0].parametrizations.weight.original0)
    model[0].parametrizations.weight.original1.data.normal_(0, 0.01)
    hooked = _net(lambda layer: _by_hooks(nn.utils.weight_norm, layer))
    hooked[0].weight_v.data.normal_(0, 0.01)
    _train(model)
    _train(hooked)


@clean
def first_value_of_spectral_norm_filled():
    model = _net(lambda layer: _by_hooks(nn.utils.spectral_norm, layer))
    model[0].weight.data.normal_(0, 0.01)  # the memory of weight_orig until the first forward
    _train(model)


@clean
def weight_filled_that_is_computed_no_more():
    model = _net(parametrizations.weight_norm)
    parametrize.remove_parametrizations(model[0], "weight")
    nn.init.normal_(model[0].weight)
    hooked = _net(lambda layer: _by_hooks(nn.utils.weight_norm, layer))
    nn.utils.remove_weight_norm(hooked[0])
    nn.init.normal_(hooked[0].weight)
    _train(model)
    _train(hooked)


@clean
def copy_of_a_computed_weight_filled():
    model = _net(parametrizations.weight_norm)
    noise = model[0].weight.detach().clone()
    noise.normal_()
    _train(model)


@clean
def computed_weight_filled_and_used():
    layer = parametrizations.weight_norm(nn.Linear(4, 1))
    bias = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([bias, *layer.parameters()], lr=0.05)
    for x, y in data(4):
        optimizer.zero_grad()
        (layer(x) - y).square().mean().backward()
        noise = layer.weight.detach()
        noise.normal_()
        (nn.functional.linear(x, noise, bias) - y).square().mean().backward()
        optimizer.step()


class NoisyLinear(nn.Module):
    """Replaces some of its computed weight in each forward."""

    def __init__(self):
        super().__init__()
        self.body = parametrizations.weight_norm(nn.Linear(4, 1))

    def forward(self, x):
        noise = self.body.weight.detach()
        noise.normal_(0, 0.01)
        return self.body(x) + nn.functional.linear(x, noise)


@clean
def computed_weight_filled_in_a_forward():
    _train(NoisyLinear())


@clean
def computed_weight_clamped_for_a_look():
    model = _net(parametrizations.weight_norm)
    shown = model[0].weight.detach()
    shown.sub_(shown.min())
    shown.div_(shown.max())
    del shown
    _train(model)
