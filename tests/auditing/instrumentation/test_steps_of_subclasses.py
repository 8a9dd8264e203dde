"""A step that calls the step of the class it derives from is one step."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.optim import SGD

import gradcheck_suite as gs


class NoisySGD(SGD):
    fails = False

    def step(self, closure=None):
        super().step(closure)
        if self.fails:
            raise RuntimeError("no noise")
        with torch.no_grad():
            for parameter in self.param_groups[0]["params"]:
                parameter.add_(0.01 * torch.randn_like(parameter))


def train(optimizer, model, steps=4, *, clear=True):
    for _ in range(steps):
        if clear:
            optimizer.zero_grad()
        model(torch.randn(4, 3)).pow(2).mean().backward()
        optimizer.step()


@pytest.fixture
def model():
    # Torch calls hooks in steps of the classes that it has seen instances of.
    SGD(nn.Linear(1, 1).parameters(), lr=0.1)
    return nn.Linear(3, 1)


def test_a_step_inside_a_step_is_a_part_of_it(model):
    with gs.audit(report=False) as session:
        train(NoisySGD(model.parameters(), lr=0.1), model)
    assert session.findings == ()
    assert session.report.summary["steps"] == 4


def test_steps_are_seen_again_after_one_that_raised(model):
    with gs.audit(report=False) as session:
        optimizer = NoisySGD(model.parameters(), lr=0.1)
        optimizer.fails = True
        with pytest.raises(RuntimeError, match="no noise"):
            train(optimizer, model)
        optimizer.fails = False
        train(optimizer, model, clear=False)
    assert session.report.summary["steps"] == 4
    assert [each.code for each in session.findings] == ["GCS301"]


class WithRate(SGD):
    def __init__(self, parameters, scale):
        super().__init__(parameters, lr=0.1 * scale)


class WithTwiceTheRate(WithRate):
    def __init__(self, parameters):
        super().__init__(parameters, 2)


def test_it_is_made_where_its_class_is_called(model, line_of):
    def loop():
        train(WithTwiceTheRate(model.parameters()), model)  # <- made

    with gs.audit(report=False) as session:
        loop()
    (optimizer,) = session.ledger.optimizers
    assert optimizer.made is not None
    assert optimizer.made.line == line_of(loop, "made")
