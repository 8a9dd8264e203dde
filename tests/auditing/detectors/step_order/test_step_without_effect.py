"""GCS313: steps that change nothing, and scalers that leave every step out."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from gradcheck_suite.findings import Severity

CODE = "GCS313"


def data():
    x = torch.randn(8, 4)
    return x, x.sum(1, keepdim=True)


def train(model, optimizer, *, steps=6, schedule=None):
    for _ in range(steps):
        optimizer.zero_grad()
        x, y = data()
        (model(x) - y).pow(2).mean().backward()
        optimizer.step()  # <- here
        if schedule is not None:
            schedule.step()


def rate_of_zero():
    model = nn.Linear(4, 1)
    train(model, torch.optim.Adam(model.parameters(), lr=0.0))


def below_rounding():
    model = nn.Linear(4, 1)
    with torch.no_grad():
        model.weight.fill_(1e6)
        model.bias.fill_(1e6)
    train(model, torch.optim.SGD(model.parameters(), lr=1e-12))


def a_schedule_of_zeros():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: step // 100)
    train(model, optimizer, steps=16, schedule=schedule)


@pytest.mark.parametrize(
    ("loop", "said"),
    [
        (rate_of_zero, "none of 6 calls of Adam.step() changed a parameter, though there were"),
        (below_rounding, "each update was less than rounding"),
        (a_schedule_of_zeros, "none of 16 calls of SGD.step() changed a parameter"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_steps_that_change_nothing_are_told_of(audited, only, line_of, loop, said):
    finding = only(audited(loop), CODE)
    assert finding.severity is Severity.WARNING
    assert said in finding.message
    assert finding.location.line == line_of(train)
    assert finding.hint


def test_the_second_of_two_optimizers_is_looked_at_too(audited, only):
    def loop():
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
        first = torch.optim.SGD(model[0].parameters(), lr=0.1)
        second = torch.optim.Adam(model[1].parameters(), lr=0.0)
        for index in range(10):
            first.zero_grad()
            second.zero_grad()
            x, y = data()
            (model(x) - y).pow(2).mean().backward()
            first.step()
            if index > 2:
                second.step()

    assert "Adam.step()" in only(audited(loop), CODE).message


def usual():
    model = nn.Linear(4, 1)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1))


def a_warm_up_from_zero():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0, step - 5) / 10)
    train(model, optimizer, steps=8, schedule=schedule)


def the_beginning_of_a_warm_up():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: step // 100)
    train(model, optimizer, steps=8, schedule=schedule)


def few_steps():
    model = nn.Linear(4, 1)
    train(model, torch.optim.SGD(model.parameters(), lr=0.0), steps=2)


def some_parameters_are_held():
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(4)), nn.Linear(4, 1))
    held = {"params": model[:4].parameters(), "lr": 0.0}
    train(model, torch.optim.SGD([held, {"params": model[4].parameters()}], lr=0.1))


def gradients_of_zero():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(6):
        optimizer.zero_grad()
        (model(data()[0]) * 0.0).sum().backward()
        optimizer.step()


@pytest.mark.parametrize(
    "loop",
    [
        usual,
        a_warm_up_from_zero,
        few_steps,
        some_parameters_are_held,
        gradients_of_zero,
    ],
    ids=lambda loop: loop.__name__,
)
def test_what_moves_or_may_yet_is_not_told_of(audited, loop):
    assert CODE not in {finding.code for finding in audited(loop).findings}


def test_the_beginning_of_a_schedule_is_a_note(audited):
    (finding,) = [
        each for each in audited(the_beginning_of_a_warm_up).findings if each.code == CODE
    ]
    assert finding.severity.value == "note"
    assert finding.evidence["lowered"] == ("its schedule may begin with a rate of 0",)


def scaled(*, overflows, steps=6, enabled=True):
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", enabled=enabled)
    for index in range(steps):
        optimizer.zero_grad()
        x, y = data()
        loss = (model(x) - y).pow(2).mean()
        scaler.scale(loss * (math.inf if index < overflows else 1.0)).backward()
        scaler.step(optimizer)  # <- here
        scaler.update()


def test_a_scaler_that_leaves_out_every_step_is_told_of(audited, only, line_of):
    finding = only(audited(lambda: scaled(overflows=6)), CODE)
    assert finding.severity is Severity.WARNING
    assert finding.location.line == line_of(scaled)
    assert "GradScaler.step() left out SGD.step() each of 6 times" in finding.message
    assert "the scale went from 65536 to 2048" in finding.message


@pytest.mark.parametrize(
    "options",
    [{"overflows": 5}, {"overflows": 0}, {"overflows": 3, "steps": 3}],
    ids=["until the last", "never", "few"],
)
def test_a_scaler_that_steps_by_and_by_is_not(audited, options):
    session = audited(lambda: scaled(**options))
    assert CODE not in {finding.code for finding in session.findings}


def test_a_rate_that_the_optimizer_finds_itself_is_no_rate_of_zero(audited, only):
    class Own(torch.optim.SGD):
        def step(self):
            for group in self.param_groups:
                group["lr"] = None

    def loop():
        model = nn.Linear(4, 1)
        optimizer = Own(model.parameters(), lr=0.1)
        for _ in range(6):
            optimizer.zero_grad()
            x, y = data()
            (model(x) - y).pow(2).mean().backward()
            optimizer.step()

    finding = only(audited(loop), CODE)
    assert finding.evidence["learning_rates"] == (None,)
    assert "learning rate is 0" not in finding.message
