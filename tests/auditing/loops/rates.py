"""Loops that keep a parameter group at a learning rate of 0, or seem to."""

from __future__ import annotations

import torch
from torch.optim import lr_scheduler

from tests.auditing.loops.bank import buggy, clean, data, mse, net


def step(model, optimizer, x, y):
    optimizer.zero_grad()
    mse(model, x, y).backward()
    optimizer.step()


@buggy("GCS315")
def rate_of_a_group_rounded_to_zero():
    model, rate = net(), 0.004
    optimizer = torch.optim.SGD(  # <- here
        [
            {"params": model[0].parameters(), "lr": round(rate / 10, 3)},
            {"params": model[2].parameters()},
        ],
        lr=rate,
    )
    for x, y in data():
        step(model, optimizer, x, y)


@clean
def rate_of_a_group_divided():
    model, rate = net(), 0.004
    optimizer = torch.optim.SGD(
        [
            {"params": model[0].parameters(), "lr": rate / 10},
            {"params": model[2].parameters()},
        ],
        lr=rate,
    )
    for x, y in data():
        step(model, optimizer, x, y)


@buggy("GCS315")
def default_rate_of_zero_for_a_group_added_later():
    model = net()
    optimizer = torch.optim.Adam(  # <- here
        [{"params": model[2].parameters(), "lr": 0.01}], lr=0.0
    )
    optimizer.add_param_group({"params": model[0].parameters()})
    for x, y in data():
        step(model, optimizer, x, y)


@clean
def rate_given_to_a_group_added_later():
    model = net()
    optimizer = torch.optim.Adam([{"params": model[2].parameters(), "lr": 0.01}], lr=0.0)
    optimizer.add_param_group({"params": model[0].parameters(), "lr": 0.001})
    for x, y in data():
        step(model, optimizer, x, y)


@buggy("GCS315")
def schedule_of_a_group_with_a_whole_division():
    model = net()
    groups = [{"params": model[0].parameters()}, {"params": model[2].parameters()}]
    optimizer = torch.optim.SGD(groups, lr=0.1)  # <- here
    factors = [lambda epoch: epoch // 100, lambda epoch: epoch / 100 + 0.1]
    scheduler = lr_scheduler.LambdaLR(optimizer, factors)
    for x, y in data(16):
        step(model, optimizer, x, y)
        scheduler.step()


@clean
def schedule_of_a_group_that_begins_at_zero():
    model = net()
    groups = [{"params": model[0].parameters()}, {"params": model[2].parameters()}]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    factors = [lambda epoch: epoch // 14, lambda epoch: epoch / 100 + 0.1]
    scheduler = lr_scheduler.LambdaLR(optimizer, factors)
    for x, y in data(16):
        step(model, optimizer, x, y)
        scheduler.step()


@clean
def group_held_by_hand_in_the_first_epoch():
    model = net()
    held = {"params": model[0].parameters(), "lr": 0.0}
    optimizer = torch.optim.SGD([held, {"params": model[2].parameters()}], lr=0.1)
    for epoch in range(2):
        if epoch:
            optimizer.param_groups[0]["lr"] = 0.01
        for x, y in data(8):
            step(model, optimizer, x, y)


@clean
def group_that_ends_at_zero():
    model = net()
    groups = [{"params": model[0].parameters()}, {"params": model[2].parameters()}]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    for index, (x, y) in enumerate(data(12)):
        if index > 1:
            optimizer.param_groups[0]["lr"] = 0.0
        step(model, optimizer, x, y)


@clean
def group_at_zero_that_is_frozen():
    model = net()
    model[0].requires_grad_(False)
    held = {"params": model[0].parameters(), "lr": 0.0}
    optimizer = torch.optim.SGD([held, {"params": model[2].parameters()}], lr=0.1)
    for x, y in data():
        step(model, optimizer, x, y)


@clean
def sizes_of_steps_that_begin_at_zero():
    """Rprop takes its rate as the size of the first steps, and then goes by signs."""
    model = net()
    start = {"params": model[0].parameters(), "lr": 0.0}
    optimizer = torch.optim.Rprop(
        [start, {"params": model[2].parameters()}], lr=0.01, step_sizes=(1e-4, 1.0)
    )
    for x, y in data():
        step(model, optimizer, x, y)


@buggy("GCS319")
def optimizer_made_by_what_takes_the_step():
    model = net()

    def step(x, y):
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)  # <- here
        optimizer.zero_grad()
        mse(model, x, y).backward()
        optimizer.step()

    for x, y in data():
        step(x, y)


@clean
def adapted_to_each_example_from_the_same_weights():
    model = net()
    begun = {name: each.clone() for name, each in model.state_dict().items()}
    for x, y in data():
        model.load_state_dict(begun)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        mse(model, x, y).backward()
        optimizer.step()
        optimizer.zero_grad()


@clean
def rounds_with_an_optimizer_each():
    model = net()
    for _ in range(6):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        for x, y in data(3):
            optimizer.zero_grad()
            mse(model, x, y).backward()
            optimizer.step()


@clean
def plain_descent_made_in_the_loop():
    model = net()
    for x, y in data():
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        optimizer.zero_grad()
        mse(model, x, y).backward()
        optimizer.step()
