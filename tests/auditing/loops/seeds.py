"""Loops that seed torch's own generator: once, or again and again."""

from __future__ import annotations

import torch
from torch import nn

from tests.auditing.loops.bank import buggy, clean, data, mse, net, setup


def _step(model, optimizer, x, y):
    optimizer.zero_grad()
    mse(model, x, y).backward()
    optimizer.step()


@buggy("GCS705")
def seed_at_the_top_of_each_step():
    model, optimizer = setup(drop=True)
    for x, y in data(5):
        torch.manual_seed(0)  # <- here
        _step(model, optimizer, x, y)


class Augmented:
    def __init__(self, rows):
        self.rows = rows

    def __getitem__(self, index):
        torch.manual_seed(3)  # <- item
        x, y = self.rows[index]
        return x + torch.randn_like(x), y

    def __len__(self):
        return len(self.rows)


@clean
def seed_once():
    torch.manual_seed(0)
    model, optimizer = setup(drop=True)
    for x, y in data(5):
        _step(model, optimizer, x, y)


@clean
def seed_of_its_own_for_each_step():
    model, optimizer = setup(drop=True)
    for number, (x, y) in enumerate(data(5)):
        torch.manual_seed(number)
        _step(model, optimizer, x, y)


@clean
def seed_inside_a_fork():
    model, optimizer = setup(drop=True)
    for x, y in data(5):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            noise = torch.randn_like(x)
        _step(model, optimizer, x + noise, y)


@clean
def seed_whose_state_is_put_back():
    model, optimizer = setup(drop=True)
    for x, y in data(5):
        before = torch.get_rng_state()
        torch.manual_seed(0)
        noise = torch.randn_like(x)
        torch.set_rng_state(before)
        _step(model, optimizer, x + noise, y)


@clean
def seed_for_each_of_several_trainings():
    for _ in range(4):
        torch.manual_seed(0)
        model = net(drop=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x, y in data(2):
            _step(model, optimizer, x, y)


@clean
def seed_after_which_nothing_is_drawn():
    model, optimizer = setup()
    batches = data(5)
    for x, y in batches:
        torch.manual_seed(0)
        _step(model, optimizer, x, y)


@clean
def noise_of_an_evaluation_that_repeats():
    model, optimizer = setup(drop=True)
    for number, (x, y) in enumerate(data(12)):
        _step(model, optimizer, x, y)
        if number % 3 == 2:
            model.eval()
            with torch.no_grad():
                torch.manual_seed(7)
                model(x + torch.randn_like(x))
            model.train()


@buggy("GCS705")
def seed_in_the_items_of_a_data_set():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rows = Augmented([(torch.randn(4), torch.randn(1)) for _ in range(6)])
    for index in range(len(rows)):
        x, y = rows[index]
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
