"""Models that follow another: moving averages, teachers and targets, with their buffers or not."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody writes it
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn

from tests.auditing.loops.bank import buggy, clean


def network():
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2))


def train(model, after=lambda: None, steps=6, evaluate=lambda _step: None):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(torch.randn(8, 4)), torch.randint(2, (8,))).backward()
        optimizer.step()
        after()
        evaluate(step)


class Average:
    def __init__(self, model):
        self.model = copy.deepcopy(model).eval()
        self.model.requires_grad_(False)

    @torch.no_grad()
    def update(self, model):
        for ours, theirs in zip(self.model.parameters(), model.parameters(), strict=True):
            ours.mul_(0.9).add_(theirs, alpha=0.1)  # <- here

    @torch.no_grad()
    def update_data(self, model):
        for ours, theirs in zip(self.model.parameters(), model.parameters(), strict=True):
            ours.data.mul_(0.9).add_(theirs.data, alpha=0.1)

    @torch.no_grad()
    def update_all(self, model):
        self.update_data(model)
        for ours, theirs in zip(self.model.buffers(), model.buffers(), strict=True):
            ours.copy_(theirs)


@buggy("GCS704")
def average_without_buffers():
    model = network()
    average = Average(model)

    def evaluate(step):
        if step % 3 == 2:
            with torch.no_grad():
                average.model(torch.randn(8, 4))

    train(model, lambda: average.update(model), evaluate=evaluate)


@buggy("GCS704")
def teacher_that_is_followed_through_data():
    model = network()
    teacher = copy.deepcopy(model).eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(6):
        x = torch.randn(8, 4)
        with torch.no_grad():
            target = teacher(x).softmax(1)
        optimizer.zero_grad()
        (model(x).softmax(1) - target).square().mean().backward()
        optimizer.step()
        for ours, theirs in zip(teacher.parameters(), model.parameters(), strict=True):
            ours.data.mul_(0.9).add_(theirs.data, alpha=0.1)  # <- here


@clean
def average_with_buffers():
    model = network()
    average = Average(model)

    def evaluate(_step):
        with torch.no_grad():
            average.model(torch.randn(8, 4))

    train(model, lambda: average.update_all(model), evaluate=evaluate)


@clean
def average_whose_statistics_are_computed_at_the_end():
    model = network()
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    train(model, lambda: average.update_parameters(model))
    update_bn([torch.randn(8, 4) for _ in range(2)], average)
    average.eval()
    with torch.no_grad():
        average(torch.randn(8, 4))


@clean
def target_that_is_loaded():
    model, target = network(), network().eval()

    def evaluate(_step):
        target.load_state_dict(model.state_dict())
        with torch.no_grad():
            target(torch.randn(8, 4))

    train(model, evaluate=evaluate)


@clean
def tried_before_it_is_trained():
    model = network()
    model.eval()
    with torch.no_grad():
        model(torch.randn(8, 4))
    model.train()
    train(model)
    model.eval()
    with torch.no_grad():
        model(torch.randn(8, 4))


@clean
def random_features_that_nobody_trains():
    features, head = network().eval(), nn.Linear(2, 2)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = head

        def forward(self, x):
            with torch.no_grad():
                x = features(x)
            return self.head(x)

    train(Net())
