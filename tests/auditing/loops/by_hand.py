"""Loops that put gradients away by hand, without ``zero_grad``."""

from __future__ import annotations

import torch

from tests.auditing.loops.bank import buggy, clean, data, mse, setup


@buggy("GCS302")
def none_between_by_hand():
    model, optimizer = setup()
    for x, y in data():
        mse(model, x, y).backward()
        for parameter in model.parameters():
            parameter.grad = None
        optimizer.step()  # <- here


@buggy("GCS302")
def none_in_a_helper_that_is_called_too_late():
    def forget(model):
        for parameter in model.parameters():
            del parameter.grad

    model, optimizer = setup(torch.optim.AdamW)
    for x, y in data():
        loss = mse(model, x, y)
        loss.backward()
        forget(model)
        optimizer.step()  # <- here


@clean
def stepped_by_hand_before_a_step_that_does_nothing():
    model, optimizer = setup()
    for x, y in data():
        mse(model, x, y).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.sub_(parameter.grad, alpha=0.01)
                parameter.grad = None
        optimizer.step()


@clean
def each_task_taken_away_and_their_mean_put_back():
    model, optimizer = setup()
    for x, y in data():
        tasks = []
        for part in (slice(3), slice(3, 6)):
            mse(model, x[part], y[part]).backward()
            tasks.append([parameter.grad for parameter in model.parameters()])
            for parameter in model.parameters():
                parameter.grad = None
        for parameter, *gradients in zip(model.parameters(), *tasks, strict=True):
            parameter.grad = torch.stack(gradients).mean(0)
        optimizer.step()


@clean
def bad_batches_dropped_by_hand():
    model, optimizer = setup()
    for i, (x, y) in enumerate(data(12)):
        optimizer.zero_grad()
        mse(model, x, y).backward()
        if i % 3:
            for parameter in model.parameters():
                parameter.grad = None
        optimizer.step()


@clean
def two_optimizers_of_which_one_waits():
    model, optimizer = setup()
    other, later = setup()
    for i, (x, y) in enumerate(data()):
        (mse(model, x, y) + mse(other, x, y)).backward()
        if i < 4:
            for parameter in other.parameters():
                parameter.grad = None
        optimizer.step()
        later.step()
        optimizer.zero_grad()
        later.zero_grad()
