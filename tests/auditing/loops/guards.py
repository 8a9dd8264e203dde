"""Loops whose own guard leaves out the steps on NaN, and guards against other things."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as everybody writes it
from torch.nn.utils import clip_grad_norm_

from tests.auditing.loops.bank import buggy, clean, data, mse, setup


def guarded_step(optimizer, model, loss):
    optimizer.zero_grad()
    loss.backward()
    norm = clip_grad_norm_(model.parameters(), 1.0)
    if math.isfinite(norm):
        optimizer.step()


class Retrieval(nn.Module):
    def __init__(self):
        super().__init__()
        self.query = nn.Linear(4, 5)
        self.temperature = nn.Parameter(torch.tensor(0.5))


@buggy("GCS604")
def padded_scores_over_a_learned_temperature():
    model = Retrieval()
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(16):
        mask = torch.ones(6, 5, dtype=torch.bool)
        mask[:, 4] = step % 8 < 4
        scores = model.query(torch.randn(6, 4)).masked_fill(~mask, float("-inf"))
        logits = scores / model.temperature  # <- here
        loss = F.cross_entropy(logits, torch.zeros(6, dtype=torch.long))
        guarded_step(optimizer, model, loss)


@buggy("GCS604")
def distance_between_equal_atoms():
    model, optimizer = setup(torch.optim.Adam)
    for step in range(16):
        x = torch.randn(6, 4)
        other = x.clone() if step % 5 in (1, 3) else torch.randn(6, 4)
        distance = (model(x) - model(other)).square().sum(1).sqrt()  # <- here
        guarded_step(optimizer, model, distance.mean())


@buggy("GCS604")
def angle_of_a_rotation_that_stays():
    model, optimizer = setup()
    for step in range(16):
        cosine = torch.tanh(model(torch.randn(6, 4)))
        cosine = cosine / cosine.detach().abs() if step % 4 == 3 else cosine
        loss = torch.acos(cosine).square().mean()  # <- here
        optimizer.zero_grad()
        loss.backward()
        if all(p.grad.isfinite().all() for p in model.parameters()):
            optimizer.step()


@clean
def guard_that_has_nothing_to_do():
    model, optimizer = setup()
    for x, y in data(16):
        guarded_step(optimizer, model, mse(model, x, y))


@clean
def guard_against_large_gradients():
    model, optimizer = setup()
    for step, (x, y) in enumerate(data(16)):
        optimizer.zero_grad()
        mse(model, x, y).backward()
        if step % 4:
            optimizer.step()


@clean
def guard_against_a_loss_that_is_not_finite():
    model, optimizer = setup()
    for step, (x, y) in enumerate(data(16)):
        loss = mse(model, x, y * (math.inf if step % 5 == 4 else 1))
        if not math.isfinite(loss):
            continue
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@buggy("GCS604")
def numbers_written_over_nan():
    model, optimizer = setup(torch.optim.Adam)
    for _ in range(6):
        gap = model(torch.randn(6, 4)) * torch.tensor([[0.0], [1], [1], [1], [1], [1]])
        optimizer.zero_grad()
        gap.square().sum(1).sqrt().mean().backward()  # <- here
        for parameter in model.parameters():
            torch.nan_to_num_(parameter.grad, nan=0.0)
        optimizer.step()


@buggy("GCS604")
def hooks_of_parameters_that_write_over_nan():
    model, optimizer = setup()
    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: torch.nan_to_num(gradient, nan=0.0))
    for _ in range(6):
        gap = model(torch.randn(6, 4)) * torch.tensor([[0.0], [1], [1], [1], [1], [1]])
        optimizer.zero_grad()
        gap.square().sum(1).sqrt().mean().backward()  # <- here
        optimizer.step()


@clean
def root_of_what_was_masked_before():
    model, optimizer = setup()
    padded = torch.arange(6)[:, None] == 0
    for _ in range(6):
        gap = model(torch.randn(6, 4)).square().masked_fill(padded, 0.0)
        optimizer.zero_grad()
        gap.sqrt().masked_fill(padded, 0.0).mean().backward()
        optimizer.step()


@clean
def nan_to_num_that_has_nothing_to_do():
    model, optimizer = setup()
    for x, y in data(6):
        optimizer.zero_grad()
        mse(model, x, y).backward()
        for parameter in model.parameters():
            torch.nan_to_num_(parameter.grad)
        optimizer.step()
