"""Loops with a GradScaler: clipped before unscaling, called out of order, or correct."""

from __future__ import annotations

import contextlib
import math

import torch
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.optim import lr_scheduler

from tests.auditing.loops.bank import buggy, clean, cpu_scaler, data, mse, net, setup


@buggy("GCS305")
def clip_without_unscale():
    model, optimizer = setup()
    scaler = cpu_scaler()
    for x, y in data():
        optimizer.zero_grad()
        scaler.scale(mse(model, x, y)).backward()
        clip_grad_norm_(model.parameters(), 1.0)  # <- here
        scaler.step(optimizer)
        scaler.update()


@buggy("GCS305")
def clip_value_without_unscale():
    model, optimizer = setup(torch.optim.Adam)
    scaler = cpu_scaler()
    for x, y in data():
        optimizer.zero_grad()
        scaler.scale(mse(model, x, y)).backward()
        clip_grad_value_(model.parameters(), 1.0)  # <- here
        scaler.step(optimizer)
        scaler.update()


@buggy("GCS305")
def clip_then_unscale():
    model, optimizer = setup()
    scaler = cpu_scaler()
    for x, y in data():
        optimizer.zero_grad()
        scaler.scale(mse(model, x, y)).backward()
        clip_grad_norm_(model.parameters(), 1.0)  # <- here
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()


@buggy("GCS305")
def clip_scaled_accumulation():
    model, optimizer = setup()
    scaler = cpu_scaler()
    for index, (x, y) in enumerate(data(8)):
        (scaler.scale(mse(model, x, y)) / 2).backward()
        if index % 2:
            clip_grad_norm_(model.parameters(), 1.0)  # <- here
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()


@buggy("GCS305")
def clip_with_the_wrong_optimizer_unscaled():
    model, other = net(), net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    second = torch.optim.SGD(other.parameters(), lr=0.01)
    scaler = cpu_scaler()
    for x, y in data():
        optimizer.zero_grad()
        second.zero_grad()
        scaler.scale(mse(model, x, y) + mse(other, x, y)).backward()
        scaler.unscale_(second)
        clip_grad_norm_(model.parameters(), 1.0)  # <- here
        scaler.step(optimizer)
        scaler.step(second)
        scaler.update()


@buggy("GCS302")
def zero_before_the_scaler_steps():
    model, optimizer = setup()
    scaler = cpu_scaler()
    for x, y in data():
        scaler.scale(mse(model, x, y)).backward()
        optimizer.zero_grad()  # <- here
        scaler.step(optimizer)
        scaler.update()


@buggy("GCS310")
def optimizer_steps_on_scaled_gradients():
    model, optimizer = setup(lr=1e-6)
    scaler = cpu_scaler()
    for x, y in data():
        optimizer.zero_grad()
        scaler.scale(mse(model, x, y)).backward()
        optimizer.step()  # <- here


@buggy("GCS310")
def scaled_loss_unused():
    model, optimizer = setup()
    scaler = cpu_scaler()
    for x, y in data():
        optimizer.zero_grad()
        loss = mse(model, x, y)
        scaler.scale(loss)
        loss.backward()
        scaler.step(optimizer)  # <- here
        scaler.update()


@buggy("GCS310")
def unscale_then_own_step():
    model, optimizer = setup()
    scaler = cpu_scaler()
    for x, y in data():
        optimizer.zero_grad()
        scaler.scale(mse(model, x, y)).backward()
        scaler.unscale_(optimizer)
        optimizer.step()  # <- here
        scaler.update()


@buggy("GCS310")
def no_update():
    model, optimizer = setup()
    scaler = cpu_scaler()
    for x, y in data():
        optimizer.zero_grad()
        scaler.scale(mse(model, x, y)).backward()
        scaler.step(optimizer)  # <- here


@buggy("GCS310")
def no_scale():
    model, optimizer = setup()
    scaler = cpu_scaler()
    for x, y in data():
        optimizer.zero_grad()
        mse(model, x, y).backward()
        scaler.step(optimizer)  # <- here
        scaler.update()


@buggy("GCS310")
def unscale_doubled():
    model, optimizer = setup()
    scaler = cpu_scaler()
    for x, y in data():
        optimizer.zero_grad()
        scaler.scale(mse(model, x, y)).backward()
        scaler.unscale_(optimizer)
        scaler.unscale_(optimizer)  # <- here
        scaler.step(optimizer)
        scaler.update()


@buggy("GCS310")
def unscale_after_step():
    model, optimizer = setup()
    scaler = cpu_scaler()
    for x, y in data():
        optimizer.zero_grad()
        scaler.scale(mse(model, x, y)).backward()
        scaler.step(optimizer)
        scaler.unscale_(optimizer)  # <- here
        scaler.update()


@buggy("GCS310")
def update_before_step():
    model, optimizer = setup()
    scaler = cpu_scaler()
    for x, y in data():
        optimizer.zero_grad()
        scaler.scale(mse(model, x, y)).backward()
        scaler.update()  # <- here
        scaler.step(optimizer)


@buggy("GCS310")
def one_of_two_optimizers_steps_itself():
    model, other = net(), net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    second = torch.optim.SGD(other.parameters(), lr=1e-6)
    scaler = cpu_scaler()
    for x, y in data():
        optimizer.zero_grad()
        second.zero_grad()
        scaler.scale(mse(model, x, y) + mse(other, x, y)).backward()
        scaler.step(optimizer)
        second.step()  # <- here
        scaler.update()


@buggy("GCS310")
def unscale_on_each_micro_batch():
    model, optimizer = setup()
    scaler = cpu_scaler()
    for index, (x, y) in enumerate(data(8)):
        scaler.scale(mse(model, x, y)).backward()
        if index % 2 == 0:
            scaler.unscale_(optimizer)
        else:
            scaler.step(optimizer)  # <- here
            scaler.update()
            optimizer.zero_grad()


@clean
def amp():
    model, optimizer = setup(torch.optim.AdamW)
    scaler = cpu_scaler()
    for x, y in data():
        optimizer.zero_grad()
        scaler.scale(mse(model, x, y)).backward()
        scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()


@clean
def amp_first_steps_overflow():
    model, optimizer = setup()
    scaler = cpu_scaler()
    scheduler = lr_scheduler.LinearLR(optimizer, 0.5)
    for index, (x, y) in enumerate(data()):
        optimizer.zero_grad()
        loss = mse(model, x, y) * (math.inf if index < 3 else 1.0)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if index > 2:
            scheduler.step()


@clean
def amp_switched_off():
    model, optimizer = setup()
    scaler = cpu_scaler(enabled=False)
    for x, y in data():
        optimizer.zero_grad()
        scaler.scale(mse(model, x, y)).backward()
        clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()


@clean
def amp_limit_scaled_by_hand():
    model, optimizer = setup()
    scaler = cpu_scaler(init_scale=65536.0)
    for x, y in data():
        optimizer.zero_grad()
        scaler.scale(mse(model, x, y)).backward()
        clip_grad_norm_(model.parameters(), scaler.get_scale() * 1.0)
        scaler.step(optimizer)
        scaler.update()


@clean
def amp_accumulation():
    model, optimizer = setup()
    scaler = cpu_scaler()
    for index, (x, y) in enumerate(data(9)):
        (scaler.scale(mse(model, x, y)) / 3).backward()
        if index % 3 == 2:
            scaler.unscale_(optimizer)
            clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()


@clean
def amp_sum_of_two_scaled_losses():
    model, optimizer = setup()
    scaler = cpu_scaler()
    for x, y in data():
        optimizer.zero_grad()
        total = scaler.scale(mse(model, x, y)) + scaler.scale(model(x).pow(2).mean())
        total.backward()
        scaler.step(optimizer)
        scaler.update()


@clean
def amp_one_optimizer_without():
    model, other = net(), net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    second = torch.optim.SGD(other.parameters(), lr=0.01)
    scaler = cpu_scaler()
    for x, y in data():
        optimizer.zero_grad()
        scaler.scale(mse(model, x, y)).backward()
        scaler.step(optimizer)
        scaler.update()
        second.zero_grad()
        mse(other, x, y).backward()
        clip_grad_norm_(other.parameters(), 1.0)
        second.step()


@buggy("GCS310")
def step_past_the_scaler_and_update():
    model, optimizer = setup()
    scaler = cpu_scaler()
    for x, y in data():
        optimizer.zero_grad()
        scaler.scale(mse(model, x, y)).backward()
        optimizer.step()  # <- here
        scaler.update()


@buggy("GCS310")
def gradients_set_to_none_by_hand_before_the_scaler_steps():
    model, optimizer = setup()
    scaler = cpu_scaler()
    for x, y in data():
        scaler.scale(mse(model, x, y)).backward()
        for parameter in model.parameters():
            parameter.grad = None
        with contextlib.suppress(AssertionError):
            scaler.step(optimizer)  # <- here
            scaler.update()


@clean
def amp_gradients_halved_by_hand():
    model, optimizer = setup()
    scaler = cpu_scaler()
    for number, (x, y) in enumerate(data()):
        scaler.scale(mse(model, x, y)).backward()
        for parameter in model.parameters():
            if number % 2:
                parameter.grad = parameter.grad / 2
            else:
                parameter.grad.mul_(0.5)
        scaler.step(optimizer)
        scaler.update()
        for parameter in model.parameters():
            parameter.grad = None


@clean
def amp_gradients_of_a_frozen_part_set_to_none():
    model, optimizer = setup()
    scaler = cpu_scaler()
    for x, y in data():
        scaler.scale(mse(model, x, y)).backward()
        model[0].bias.grad = None
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
