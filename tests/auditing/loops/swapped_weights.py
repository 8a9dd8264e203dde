"""Weights that are replaced for an evaluation, and put back or not."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn.utils import prune

from tests.auditing.loops.bank import buggy, clean


def network():
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 1))


def step(model, optimizer):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()


def evaluate(model):
    model.eval()
    with torch.no_grad():
        loss = model(torch.randn(8, 4)).square().mean().item()
    model.train()
    return loss


class Average:
    def __init__(self, model):
        self.model = model
        self.shadow = {name: p.detach().clone() for name, p in model.named_parameters()}
        self.backup = {}

    def update(self):
        for name, p in self.model.named_parameters():
            self.shadow[name].lerp_(p.detach(), 0.1)

    def apply(self):
        for name, p in self.model.named_parameters():
            self.backup[name] = p.detach().clone()
            p.data.copy_(self.shadow[name])  # <- here

    def restore(self):
        for name, p in self.model.named_parameters():
            p.data.copy_(self.backup[name])


@buggy("GCS316")
def average_that_is_not_taken_back():
    model = network()
    average = Average(model)
    optimizer = torch.optim.AdamW(model.parameters())
    for number in range(12):
        step(model, optimizer)
        average.update()
        if number % 3 == 2:
            average.apply()
            evaluate(model)


@buggy("GCS316")
def state_that_is_not_loaded_back():
    model = network()
    average = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(12):
        step(model, optimizer)
        with torch.no_grad():
            for ours, theirs in zip(average.parameters(), model.parameters(), strict=True):
                ours.lerp_(theirs, 0.1)
        if number % 3 == 2:
            model.load_state_dict(average.state_dict())  # <- here
            evaluate(model)


@buggy("GCS316")
def binary_weights_that_stay():
    model = network()
    optimizer = torch.optim.Adam(model.parameters())
    layers = [model[0].weight, model[2].weight]
    kept = [each.detach().clone() for each in layers]

    def binarize():
        for saved, weight in zip(kept, layers, strict=True):
            saved.copy_(weight.data)
            weight.data.copy_(weight.data.sign() * weight.data.abs().mean())  # <- here

    def restore():
        for saved, weight in zip(kept, layers, strict=True):
            weight.data.copy_(saved)

    for number in range(12):
        optimizer.zero_grad()
        binarize()
        model(torch.randn(8, 4)).square().mean().backward()
        restore()
        optimizer.step()
        if number % 3 == 2:
            binarize()
            evaluate(model)


@clean
def average_that_is_taken_back():
    model = network()
    average = Average(model)
    optimizer = torch.optim.AdamW(model.parameters())
    for number in range(12):
        step(model, optimizer)
        average.update()
        if number % 3 == 2:
            average.apply()
            evaluate(model)
            average.restore()


@clean
def weights_are_clipped_after_each_step():
    model = network()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=0.05)
    for number in range(12):
        step(model, optimizer)
        for p in model.parameters():
            p.data.clamp_(-0.01, 0.01)
        if number % 3 == 2:
            evaluate(model)


@clean
def slow_weights_are_taken_over_every_other_step():
    model = network()
    slow = [p.detach().clone() for p in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(16):
        step(model, optimizer)
        if number % 2:
            with torch.no_grad():
                for kept, p in zip(slow, model.parameters(), strict=True):
                    kept.lerp_(p, 0.5)
                    p.copy_(kept)
        if number % 4 == 3:
            evaluate(model)


@clean
def pruned_before_each_evaluation():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(12):
        step(model, optimizer)
        if number % 3 == 2:
            prune.l1_unstructured(model[0], "weight", amount=0.1)
            evaluate(model)


@clean
def masked_before_each_evaluation():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(12):
        step(model, optimizer)
        if number % 3 == 2:
            weight = model[0].weight
            weight.data.mul_(weight.abs() > weight.abs().median())
            evaluate(model)


@clean
def the_best_state_is_loaded_after_an_evaluation():
    model = network()
    best, state = float("inf"), None
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(12):
        step(model, optimizer)
        if number % 3 == 2:
            loss = evaluate(model)
            if loss < best:
                best, state = loss, copy.deepcopy(model.state_dict())
            else:
                model.load_state_dict(state)


@clean
def evaluated_as_it_was_trained():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(12):
        step(model, optimizer)
        if number % 3 == 2:
            evaluate(model)


@clean
def adapted_to_each_task_and_put_back():
    model = network()
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    outer = torch.optim.Adam(model.parameters())

    def adapt():
        model.train()
        for _ in range(2):
            step(model, inner)

    for number in range(6):
        state = copy.deepcopy(model.state_dict())
        adapt()
        gradients = torch.autograd.grad(
            model(torch.randn(8, 4)).square().mean(), list(model.parameters())
        )
        model.load_state_dict(state)
        for p, gradient in zip(model.parameters(), gradients, strict=True):
            p.grad = gradient
        outer.step()
        if number % 2:
            state = copy.deepcopy(model.state_dict())
            for _ in range(3):
                evaluate(model)
                adapt()
                evaluate(model)
                model.load_state_dict(state)
