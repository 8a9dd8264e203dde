"""Checkpoints that backward computes again: as they were, or not."""

from __future__ import annotations

import random
from functools import partial

import numpy as np
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from tests.auditing.loops.bank import buggy, clean


class Block(nn.Module):
    def __init__(self, width=6):
        super().__init__()
        self.inp, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        return x + self.out(self.drop(torch.relu(self.inp(x))))


class Net(nn.Module):
    def __init__(self, run, depth=2):
        super().__init__()
        self.run = run
        self.stem = nn.Linear(4, 6)
        self.blocks = nn.ModuleList([Block() for _ in range(depth)])
        self.head = nn.Linear(6, 1)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = self.run(block, x)
        return self.head(x)


def fit(model, steps=4):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(5, 4)).square().mean().backward()
        optimizer.step()


@buggy("GCS613")
def dropout_without_its_generator():
    def run(block, x):
        return checkpoint(block, x, use_reentrant=False, preserve_rng_state=False)  # <- here

    fit(Net(run))


@buggy("GCS613")
def dropout_without_its_generator_reentrant():
    def run(block, x):
        return checkpoint(block, x, use_reentrant=True, preserve_rng_state=False)  # <- here

    fit(Net(run))


@buggy("GCS613")
def layers_dropped_by_python():
    class Stack(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(6, 6) for _ in range(4)])

        def forward(self, x):
            for layer in self.layers:
                if random.random() < 0.7:
                    x = x + torch.tanh(layer(x))
                else:
                    x = x + 0.0 * torch.tanh(layer(x))
            return x

    stack = Stack()

    def run(block, x):
        return checkpoint(stack, block(x), use_reentrant=False)  # <- here

    model = Net(run, depth=1)
    model.stack = stack
    fit(model, steps=6)


@buggy("GCS613")
def noise_of_numpy():
    def noisy(block, x):
        return block(x) * torch.from_numpy(np.random.rand(*x.shape).astype("float32"))

    def run(block, x):
        return checkpoint(partial(noisy, block), x, use_reentrant=False)  # <- here

    fit(Net(run))


@buggy("GCS613")
def evaluated_between_forward_and_backward():
    def run(block, x):
        return checkpoint(block, x, use_reentrant=True)  # <- here

    model = Net(run)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(4):
        optimizer.zero_grad()
        loss = model(torch.randn(5, 4)).square().mean()
        model.eval()
        with torch.no_grad():
            model(torch.randn(5, 4))
        loss.backward()
        optimizer.step()
        model.train()


@buggy("GCS613")
def stepped_between_forward_and_backward():
    features = Block()
    one, other = nn.Linear(6, 1), nn.Linear(6, 1)
    first = torch.optim.SGD([*features.parameters(), *one.parameters()], lr=0.01)
    second = torch.optim.SGD(other.parameters(), lr=0.01)
    for _ in range(4):
        first.zero_grad()
        second.zero_grad()
        x = torch.randn(5, 6)
        loss = one(features(x)).square().mean()
        again = other(checkpoint(features, x, use_reentrant=False)).square().mean()  # <- here
        loss.backward()
        first.step()
        again.backward()
        second.step()


@clean
def dropout_with_its_generator():
    fit(Net(lambda block, x: checkpoint(block, x, use_reentrant=False)))


@clean
def dropout_with_its_generator_reentrant():
    fit(Net(lambda block, x: checkpoint(block, x, use_reentrant=True)))


@clean
def nothing_is_drawn_without_the_generator():
    def run(block, x):
        block.drop.eval()
        return checkpoint(block, x, use_reentrant=False, preserve_rng_state=False)

    fit(Net(run))


@clean
def random_numbers_are_drawn_elsewhere():
    def run(block, x):
        random.random()
        np.random.rand(2)
        return checkpoint(block, x, use_reentrant=False)

    fit(Net(run))


@clean
def evaluated_with_a_checkpoint_after_each_step():
    model = Net(lambda block, x: checkpoint(block, x, use_reentrant=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(4):
        model.train()
        optimizer.zero_grad()
        model(torch.randn(5, 4)).square().mean().backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            model(torch.randn(5, 4))


@clean
def accumulated_over_checkpoints():
    model = Net(lambda block, x: checkpoint(block, x, use_reentrant=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        for _ in range(3):
            (model(torch.randn(5, 4)).square().mean() / 3).backward()
        optimizer.step()


@clean
def segments_of_a_sequence():
    model = nn.Sequential(*[Block() for _ in range(4)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(4):
        optimizer.zero_grad()
        checkpoint_sequential(
            model, 2, torch.randn(5, 6), use_reentrant=False
        ).square().mean().backward()
        optimizer.step()


@clean
def checkpoints_inside_a_checkpoint():
    def run(block, x):
        def twice(y):
            return checkpoint(block, checkpoint(block, y, use_reentrant=False), use_reentrant=False)

        return checkpoint(twice, x, use_reentrant=False)

    fit(Net(run))


class Normed(nn.Module):
    def __init__(self, width=6):
        super().__init__()
        self.inp, self.norm = nn.Linear(width, width), nn.BatchNorm1d(width)

    def forward(self, x):
        return torch.relu(self.norm(self.inp(x)))


class Counting(nn.Module):
    """A layer that keeps a mean of what it has seen, without a gradient."""

    def __init__(self, width=6):
        super().__init__()
        self.inp = nn.Linear(width, width)
        self.register_buffer("seen", torch.zeros(width))

    def forward(self, x):
        with torch.no_grad():
            self.seen.lerp_(x.mean(0), 0.1)
        return torch.relu(self.inp(x - self.seen))


class Scratch(nn.Module):
    """A layer that writes to a buffer what does not depend on how often."""

    def __init__(self, width=6):
        super().__init__()
        self.inp = nn.Linear(width, width)
        self.register_buffer("scale", torch.ones(width))

    def forward(self, x):
        with torch.no_grad():
            self.scale.copy_(self.inp.weight.abs().amax(0))
        return torch.relu(self.inp(x / self.scale))


def net_of(kind, run):
    model = Net(run)
    model.blocks = nn.ModuleList([kind() for _ in range(2)])
    return model


@buggy("GCS613")
def statistics_in_a_checkpoint():
    def run(block, x):
        return checkpoint(block, x, use_reentrant=False)  # <- here

    fit(net_of(Normed, run))


@buggy("GCS613")
def statistics_in_a_reentrant_checkpoint():
    def run(block, x):
        return checkpoint(block, x, use_reentrant=True)  # <- here

    fit(net_of(Normed, run))


@buggy("GCS613")
def mean_in_a_checkpointed_method():
    def run(block, x):
        return checkpoint(block.forward, x, use_reentrant=False)  # <- here

    fit(net_of(Counting, run))


@clean
def statistics_beside_a_checkpoint():
    def run(block, x):
        return torch.relu(block.norm(checkpoint(block.inp, x, use_reentrant=False)))

    fit(net_of(Normed, run))


@clean
def statistics_that_are_frozen():
    def run(block, x):
        block.norm.eval()
        return checkpoint(block, x, use_reentrant=False)

    fit(net_of(Normed, run))


@clean
def buffer_that_is_written_anew():
    def run(block, x):
        return checkpoint(block, x, use_reentrant=False)

    fit(net_of(Scratch, run))
