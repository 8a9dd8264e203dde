"""Loops that clip in the wrong place."""

from __future__ import annotations

import torch
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

from tests.auditing.loops.bank import buggy, cpu_scaler, data, mse, net, setup


@buggy("GCS304")
def clip_after_step():
    model, optimizer = setup()
    for x, y in data():
        optimizer.zero_grad()
        mse(model, x, y).backward()
        optimizer.step()
        clip_grad_norm_(model.parameters(), 1.0)  # <- here


@buggy("GCS304")
def clip_value_after_step():
    model, optimizer = setup(torch.optim.Adam)
    for x, y in data():
        optimizer.zero_grad()
        mse(model, x, y).backward()
        optimizer.step()
        clip_grad_value_(model.parameters(), 1.0)  # <- here


@buggy("GCS304")
def clip_before_backward():
    model, optimizer = setup()
    for x, y in data():
        optimizer.zero_grad()
        loss = mse(model, x, y)
        clip_grad_norm_(model.parameters(), 1.0)  # <- here
        loss.backward()
        optimizer.step()


@buggy("GCS304")
def clip_zeros_before_backward():
    model, optimizer = setup()
    for x, y in data():
        optimizer.zero_grad(set_to_none=False)
        clip_grad_norm_(model.parameters(), 1.0)  # <- here
        mse(model, x, y).backward()
        optimizer.step()


@buggy("GCS304")
def clip_at_the_end_after_zero():
    model, optimizer = setup()
    for x, y in data():
        mse(model, x, y).backward()
        optimizer.step()
        optimizer.zero_grad()
        clip_grad_norm_(model.parameters(), 1.0)  # <- here


@buggy("GCS304")
def clip_at_the_end_by_model():
    model, optimizer = setup()
    for x, y in data():
        mse(model, x, y).backward()
        optimizer.step()
        model.zero_grad()
        clip_grad_norm_(model.parameters(), 1.0)  # <- here


@buggy("GCS304")
def clip_an_exhausted_iterator():
    model = net()
    parameters = filter(lambda each: each.requires_grad, model.parameters())
    optimizer = torch.optim.SGD(parameters, lr=0.01)
    for x, y in data():
        optimizer.zero_grad()
        mse(model, x, y).backward()
        clip_grad_norm_(parameters, 1.0)  # <- here
        optimizer.step()


@buggy("GCS304")
def clip_an_iterator_that_the_first_clipping_uses_up():
    model, optimizer = setup()
    parameters = model.parameters()
    for x, y in data():
        optimizer.zero_grad()
        mse(model, x, y).backward()
        clip_grad_norm_(parameters, 1.0)  # <- here
        optimizer.step()


@buggy("GCS304")
def clip_each_micro_batch():
    model, optimizer = setup()
    for index, (x, y) in enumerate(data(12)):
        (mse(model, x, y) / 4).backward()
        clip_grad_norm_(model.parameters(), 1.0)  # <- here
        if index % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()


@buggy("GCS304")
def clip_after_conditional_step():
    model, optimizer = setup()
    for _ in range(4):
        for x, y in data(2):
            (mse(model, x, y) / 2).backward()
        optimizer.step()
        clip_grad_norm_(model.parameters(), 1.0)  # <- here
        optimizer.zero_grad()


@buggy("GCS304")
def clip_scaled_after_step():
    model, optimizer = setup()
    scaler = cpu_scaler()
    for x, y in data():
        optimizer.zero_grad()
        scaler.scale(mse(model, x, y)).backward()
        scaler.step(optimizer)
        scaler.update()
        clip_grad_norm_(model.parameters(), 1.0)  # <- here


@buggy("GCS304")
def clip_value_without_a_gradient():
    model, optimizer = setup()
    for x, y in data():
        optimizer.zero_grad()
        clip_grad_value_(model.parameters(), 1.0)  # <- here
        mse(model, x, y).backward()
        optimizer.step()


@buggy("GCS304")
def clip_another_model():
    model, optimizer = setup()
    other = net()
    for x, y in data():
        optimizer.zero_grad()
        mse(model, x, y).backward()
        clip_grad_norm_(other.parameters(), 1.0)  # <- here
        optimizer.step()
