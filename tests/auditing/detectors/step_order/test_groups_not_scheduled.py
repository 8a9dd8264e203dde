"""Schedules of a program's own that set the rates of some groups alone (GCS320)."""

from __future__ import annotations

import importlib.util
import textwrap

import pytest
import torch

from gradcheck_suite.auditing.source_analysis import source
from gradcheck_suite.findings import Severity

START = """\
import torch
from torch import nn

class Schedule:
    def __init__(self, optimizer, base):
        self.optimizer, self.base, self.count = optimizer, base, 0
        self.step()

    def values(self):
        return [{values}]

    def step(self):
        self.count += 1
        for group, lr in zip({groups}, self.values()):
            group["lr"] = lr

def train(steps=12):
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    base = 0.05
    groups = [{{"params": model[0].parameters()}}, {{"params": model[2].parameters()}}]
    optimizer = torch.optim.SGD(groups, lr=base)
    schedule = Schedule(optimizer, base)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(5, 4)).square().mean().backward()
        optimizer.step()
        {each}
    return optimizer
"""


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Make a program, the only one that has source."""

    def make(*, values, groups="self.optimizer.param_groups", each="schedule.step()", more=""):
        path = tmp_path / "scheduled.py"
        text = START.format(values=values, groups=groups, each=each)
        path.write_text(text + textwrap.dedent(more))
        spec = importlib.util.spec_from_file_location("scheduled", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        monkeypatch.setattr(source, "user_files_with", lambda _text: [str(path)])
        return module.train

    return make


def test_fewer_values_than_groups(audited, only, program):
    train = program(values="self.base * 0.9**self.count")
    finding = only(audited(train), "GCS320")
    assert finding.severity is Severity.WARNING
    assert finding.location.line == 14
    assert finding.message == (
        "the schedule sets the learning rate of 1 of 2 parameter groups of SGD alone, and the last "
        "one has kept the rate of the beginning: this `zip` ends with the shorter of the two, and "
        "has fewer values than groups; expected a value for each group"
    )
    assert finding.evidence == {"groups": 2, "scheduled": 1, "optimizer": "SGD"}
    (made,) = finding.related
    assert made.location.line == 21


def test_the_rates_are_the_very_objects_when_the_audit_is_over(audited, program):
    rate = 0.05
    train = program(values="self.base * 0.9**self.count")
    kept = []
    audited(lambda: kept.append(train()))
    first, second = (group["lr"] for group in kept[0].param_groups)
    assert first == rate * 0.9**13
    assert second is train.__code__.co_consts[train.__code__.co_consts.index(rate)]


@pytest.mark.parametrize(
    "values",
    [
        "self.base * 0.9**self.count, self.base * 0.9**self.count",  # each follows
        "self.base * 0.9**self.count, self.base * 1.0",  # constant by a factor
        "self.base * 0.9**self.count, self.base",  # constant: the very object
    ],
)
def test_a_value_for_each_group(audited, program, values):
    assert audited(program(values=values)).findings == ()


def test_a_schedule_for_the_first_group_is_meant_where_it_is_named(audited, program):
    values = "self.base * 0.9**self.count"
    assert audited(program(values=values, groups="self.optimizer.param_groups[:1]")).findings == ()
    by_hand = program(
        values="self.base, self.base",
        each='optimizer.param_groups[0]["lr"] *= 0.9',
    )
    assert audited(by_hand).findings == ()


def test_another_line_that_sets_rates_may_be_the_one(audited, program):
    more = """
    def warm_up(optimizer):
        optimizer.param_groups[1]["lr"] = 0.1
    """
    values = "self.base * 0.9**self.count"
    assert audited(program(values=values, more=more)).findings == ()


def test_a_short_run_says_nothing(audited, program):
    train = program(values="self.base * 0.9**self.count")
    assert audited(lambda: train(4)).findings == ()


def test_schedulers_of_torch(audited, make_net, batch):
    def loop():
        model = make_net()
        groups = [{"params": part.parameters()} for part in (model[0], model[2])]
        optimizer = torch.optim.SGD(groups, lr=0.05)
        scheduler = torch.optim.lr_scheduler.LambdaLR(
            optimizer, [lambda step: 0.9**step, lambda _step: 1.0]
        )
        for _ in range(12):
            optimizer.zero_grad()
            model(batch()).square().mean().backward()
            optimizer.step()
            scheduler.step()

    assert audited(loop).findings == ()
