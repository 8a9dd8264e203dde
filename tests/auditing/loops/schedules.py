"""Loops whose scheduler comes first, or seems to."""

from __future__ import annotations

import torch
from torch.optim import lr_scheduler

from tests.auditing.loops.bank import buggy, clean, cpu_scaler, data, mse, setup


@buggy("GCS306")
def scheduler_first():
    model, optimizer = setup()
    scheduler = lr_scheduler.StepLR(optimizer, 2)
    for x, y in data():
        optimizer.zero_grad()
        mse(model, x, y).backward()
        scheduler.step()  # <- here
        optimizer.step()


@buggy("GCS306")
def scheduler_at_the_top_of_each_epoch():
    model, optimizer = setup()
    scheduler = lr_scheduler.ExponentialLR(optimizer, 0.9)
    for _ in range(3):
        scheduler.step()  # <- here
        for x, y in data(3):
            optimizer.zero_grad()
            mse(model, x, y).backward()
            optimizer.step()


@buggy("GCS306")
def one_cycle_first():
    model, optimizer = setup()
    scheduler = lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=8)
    for x, y in data(8):
        scheduler.step()  # <- here
        optimizer.zero_grad()
        mse(model, x, y).backward()
        optimizer.step()


@buggy("GCS306")
def warm_up_chain_first():
    model, optimizer = setup()
    warm = lr_scheduler.LinearLR(optimizer, 0.1, total_iters=3)
    scheduler = lr_scheduler.ChainedScheduler([warm, lr_scheduler.ExponentialLR(optimizer, 0.9)])
    for x, y in data():
        scheduler.step()  # <- here
        optimizer.zero_grad()
        mse(model, x, y).backward()
        optimizer.step()


@buggy("GCS306")
def cosine_before_scaler_step():
    model, optimizer = setup()
    scaler = cpu_scaler()
    scheduler = lr_scheduler.CosineAnnealingLR(optimizer, 8)
    for x, y in data():
        optimizer.zero_grad()
        scaler.scale(mse(model, x, y)).backward()
        scheduler.step()  # <- here
        scaler.step(optimizer)
        scaler.update()


@clean
def schedulers_after():
    model, optimizer = setup()
    batches = lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=12)
    for _ in range(2):
        for x, y in data(4):
            optimizer.zero_grad()
            mse(model, x, y).backward()
            optimizer.step()
            batches.step()


@clean
def plateau_with_a_first_validation():
    model, optimizer = setup()
    scheduler = lr_scheduler.ReduceLROnPlateau(optimizer)
    for _ in range(3):
        with torch.no_grad():
            loss = mse(model, *next(data()))
        scheduler.step(loss)
        for x, y in data(3):
            optimizer.zero_grad()
            mse(model, x, y).backward()
            optimizer.step()


@clean
def scheduler_not_in_the_first_epoch():
    model, optimizer = setup()
    scheduler = lr_scheduler.StepLR(optimizer, 1)
    for epoch in range(3):
        if epoch:
            scheduler.step()
        for x, y in data(2):
            optimizer.zero_grad()
            mse(model, x, y).backward()
            optimizer.step()


@clean
def scheduler_given_the_epoch():
    model, optimizer = setup()
    scheduler = lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 4)
    for epoch in range(3):
        for index, (x, y) in enumerate(data(2)):
            scheduler.step(epoch + index / 2)
            optimizer.zero_grad()
            mse(model, x, y).backward()
            optimizer.step()


@clean
def schedule_looked_at():
    _, optimizer = setup(lr=1.0)
    scheduler = lr_scheduler.CosineAnnealingLR(optimizer, 12)
    rates = []
    for _ in range(12):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    assert rates == sorted(rates, reverse=True)
