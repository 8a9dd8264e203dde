"""Findings at which torch raised an exception say so: who expected it has not made the mistake."""

from __future__ import annotations

import pytest
import torch
from torch import nn


class Short(torch.autograd.Function):
    @staticmethod
    def forward(_ctx, a, b):
        return a * b

    @staticmethod
    def backward(_ctx, grad):
        return grad


class Instance(torch.autograd.Function):
    def forward(self, x):
        return x * 2

    def backward(self, grad):
        return grad * 2


def leaf():
    return torch.ones(3, requires_grad=True)


def leaf_written():
    leaf().add_(1)


def rebound_for_an_optimizer():
    torch.optim.SGD([leaf() * 2], lr=0.1)


def overwritten():
    y = leaf().exp()
    y.mul_(2)
    y.sum().backward()


def cut_off():
    (leaf().detach() * 2).sum().backward()


def recorded_nothing():
    with torch.no_grad():
        loss = leaf().sum()
    loss.backward()


def frozen():
    model = nn.Linear(3, 1).requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()


def too_few_gradients():
    Short.apply(leaf(), leaf()).sum().backward()


def legacy():
    Instance()(leaf())


def state_carried_over():
    cell = nn.RNN(3, 3)
    optimizer = torch.optim.SGD(cell.parameters(), lr=0.1)
    state = None
    for _ in range(3):
        optimizer.zero_grad()
        out, state = cell(torch.ones(2, 1, 3), state)
        out.sum().backward()
        optimizer.step()


def unscaled_twice():
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(model(torch.ones(1, 3)).sum()).backward()
    scaler.unscale_(optimizer)
    scaler.unscale_(optimizer)


@pytest.mark.filterwarnings("ignore:.* should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize(
    ("program", "code"),
    [
        (leaf_written, "GCS101"),
        (rebound_for_an_optimizer, "GCS102"),
        (overwritten, "GCS108"),
        (state_carried_over, "GCS202"),
        (unscaled_twice, "GCS310"),
        (cut_off, "GCS401"),
        (recorded_nothing, "GCS402"),
        (frozen, "GCS406"),
        (too_few_gradients, "GCS501"),
        (legacy, "GCS502"),
    ],
)
def test_torch_has_raised(audited, only, program, code):
    def refused():
        with pytest.raises((RuntimeError, ValueError)):
            program()

    assert only(audited(refused), code).evidence["refused"] is True


def test_torch_has_raised_nothing(audited, only):
    """The same mistake as another that torch refuses."""
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    scaler = torch.amp.GradScaler("cpu")

    def steps_directly():
        for _ in range(3):
            optimizer.zero_grad()
            scaler.scale(model(torch.ones(1, 3)).sum()).backward()
            optimizer.step()

    assert "refused" not in only(audited(steps_directly), "GCS310").evidence
