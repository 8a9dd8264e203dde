"""States of optimizers that are the memory of something else (GCS111), and those that are not."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from gradcheck_suite.findings import Severity


class Lookahead(torch.optim.Optimizer):
    def __init__(self, params, keep):
        super().__init__(params, {"lr": 0.1})
        self.keep = keep

    @torch.no_grad()
    def step(self):
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            if not state:
                self.keep(state, parameter)
            parameter.add_(parameter.grad, alpha=-0.1)


class Damped(torch.optim.Optimizer):
    def __init__(self, params, keep):
        super().__init__(params, {"lr": 0.1})
        self.keep = keep

    @torch.no_grad()
    def step(self):
        for parameter in self.param_groups[0]["params"]:
            parameter.add_(parameter.grad, alpha=-0.1)
            self.keep(self.state[parameter], parameter)


def by_data(state, parameter):
    state["slow"] = parameter.data  # <- here


def by_copy(state, parameter):
    state["slow"] = parameter.detach().clone()


def the_parameter(state, parameter):
    state["parameter"] = parameter


def gradient(state, parameter):
    state["last"] = torch.zeros(1)
    state["last"] = parameter.grad.detach()  # <- here


def copy_of_gradient(state, parameter):
    state["last"] = parameter.grad.clone()


def train(kind, keep, *, to_none=False, steps=5):
    model = nn.Linear(4, 2)
    optimizer = kind(model.parameters(), keep)
    for _ in range(steps):
        optimizer.zero_grad(set_to_none=to_none)
        model(torch.randn(3, 4)).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize(
    ("loop", "words"),
    [
        (
            (Lookahead, by_data),
            '`state["slow"]` of Lookahead is the memory of the parameter',
        ),
        ((Damped, gradient), '`state["last"]` of Damped is the memory of the gradient itself'),
    ],
)
def test_kept_without_a_copy(audited, only, line_of, loop, words):
    finding = only(audited(lambda: train(*loop)), "GCS111")
    assert finding.severity is Severity.WARNING
    assert finding.location.line == line_of(loop[1])
    assert words in finding.message
    assert finding.evidence["tensors"] == 2


@pytest.mark.parametrize("keep", [by_copy, the_parameter, copy_of_gradient])
def test_kept_with_a_copy(audited, keep):
    assert not audited(lambda: train(Lookahead, keep)).findings
    assert not audited(lambda: train(Damped, keep)).findings


def test_gradients_that_are_made_anew_leave_the_last_as_it_was(audited):
    assert not audited(lambda: train(Damped, gradient, to_none=True)).findings


class Worker:
    def __init__(self, kind=torch.optim.Adam, **options):
        self.model = nn.Linear(4, 2)
        self.optimizer = kind(self.model.parameters(), lr=0.01, **options)

    def train(self, steps=3):
        for _ in range(steps):
            self.optimizer.zero_grad()
            self.model(torch.randn(3, 4)).square().mean().backward()
            self.optimizer.step()


def exploit(loser, winner):
    loser.model.load_state_dict(winner.model.state_dict())
    loser.optimizer.load_state_dict(winner.optimizer.state_dict())  # <- here


def exploit_a_copy(loser, winner):
    loser.model.load_state_dict(winner.model.state_dict())
    loser.optimizer.load_state_dict(copy.deepcopy(winner.optimizer.state_dict()))


def population(exploit, *, after=3, **options):
    workers = [Worker(**options) for _ in range(2)]
    for worker in workers:
        worker.train(5)
    exploit(*workers)
    workers[0].train()
    workers[1].train(after)


@pytest.mark.parametrize("options", [{}, {"kind": torch.optim.SGD, "momentum": 0.9}])
def test_state_of_another_optimizer(audited, only, line_of, options):
    finding = only(audited(lambda: population(exploit, **options)), "GCS111")
    assert finding.severity is Severity.WARNING
    assert finding.location.line == line_of(exploit)
    assert "two optimizers of different parameters have" in finding.message
    assert "deepcopy" in finding.hint


def test_copies_of_a_state(audited):
    assert not audited(lambda: population(exploit_a_copy)).findings


def test_an_optimizer_that_never_steps_again(audited):
    assert not audited(lambda: population(exploit, after=0)).findings


class Wrapper(torch.optim.Optimizer):
    """Has the groups and the state of the optimizer that it wraps."""

    def __init__(self, base):
        super().__init__(base.param_groups, base.defaults)
        self.base = base
        self.state = base.state

    def step(self):
        self.base.step()


def wrapped():
    model = nn.Linear(4, 2)
    optimizer = Wrapper(torch.optim.Adam(model.parameters()))
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.randn(3, 4)).square().mean().backward()
        optimizer.step()


def test_a_wrapper(audited):
    assert "GCS111" not in {finding.code for finding in audited(wrapped).findings}
