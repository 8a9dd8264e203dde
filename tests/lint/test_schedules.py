"""Schedulers that the file defines, and loops that only look at a schedule."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Callable

    from gradcheck_suite.findings import Finding

_HEAD = """\
import torch
from torch import nn
from torch.optim.lr_scheduler import _LRScheduler, LambdaLR


class Warmup(_LRScheduler):
    def __init__(self, optimizer, steps, last_epoch=-1):
        self.steps = steps
        super().__init__(optimizer, last_epoch)

    def get_lr(self):
        return [lr * min(1, (self.last_epoch + 1) / self.steps) for lr in self.base_lrs]


"""

_LOOK = """\
def look(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = {schedule}
    rates = []
    for _ in range(10):
        optimizer.zero_grad()
        optimizer.step()
        {step}
        rates.append({rate})
    print(rates)
"""


def _marked(source: str) -> list[int]:
    return [n for n, line in enumerate(source.splitlines(), 1) if line.endswith("# here")]


@pytest.mark.parametrize(
    ("schedule", "step", "rate"),
    [
        ("Warmup(optimizer, 5)", "schedule.step()", "schedule.get_lr()[0]"),
        ("Warmup(optimizer, 5)", "schedule.step()", "optimizer.param_groups[0]['lr']"),
        ("LambdaLR(optimizer, lambda s: 0.9**s)", "schedule.step()", "schedule.get_last_lr()"),
    ],
)
def test_a_schedule_is_looked_at(
    lint: Callable[[str], tuple[Finding, ...]], schedule: str, step: str, rate: str
) -> None:
    assert lint(_HEAD + _LOOK.format(schedule=schedule, step=step, rate=rate)) == ()


def test_steps_without_a_schedule_do_nothing(
    lint: Callable[[str], tuple[Finding, ...]],
) -> None:
    source = _HEAD + _LOOK.format(schedule="None", step="pass", rate="0")
    assert [finding.code for finding in lint(source)] == ["GCS303"]


def test_a_loss_that_is_not_differentiated_beside_a_schedule(
    lint: Callable[[str], tuple[Finding, ...]],
) -> None:
    source = f"""{_HEAD}
def train(model, loader, compute):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = LambdaLR(optimizer, lambda s: 0.9**s)
    for batch in loader:
        optimizer.zero_grad()
        loss = compute(batch)
        optimizer.step()  # here
        schedule.step()
"""
    (found,) = lint(source)
    assert (found.code, found.severity) == ("GCS303", Severity.ERROR)
    assert found.location is not None
    assert [found.location.line] == _marked(source)


_TRAIN = """
def train(model: nn.Module, loader, epochs):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    warm = Warmup(optimizer, 100)
    for epoch in range(epochs):
        {early}
        for x, y in loader:
            optimizer.zero_grad()
            loss = (model(x) - y).pow(2).mean()
            loss.backward()
            optimizer.step()
            {late}
"""


def test_a_scheduler_of_the_file_is_no_optimizer(
    lint: Callable[[str], tuple[Finding, ...]],
) -> None:
    assert lint(_HEAD + _TRAIN.format(early="pass", late="warm.step()")) == ()


def test_a_scheduler_of_the_file_that_steps_first(
    lint: Callable[[str], tuple[Finding, ...]],
) -> None:
    source = _HEAD + _TRAIN.format(early="warm.step()  # here", late="pass")
    (found,) = lint(source)
    assert (found.code, found.severity) == ("GCS306", Severity.WARNING)
    assert found.location is not None
    assert [found.location.line] == _marked(source)


_IN_A_TUPLE = """\
import torch
from helpers import Ramp, get_ramp, get_training_utilities


def train(name):
    {made}
    for batch in loader:
        loss = model(**batch).loss
        loss.backward()
        lr_scheduler.step()
        optimizer.step()
        optimizer.zero_grad()
"""


def test_a_scheduler_that_comes_with_its_optimizer_from_elsewhere_and_steps_first(
    lint: Callable[[str], tuple[Finding, ...]],
) -> None:
    made = "model, optimizer, loader, lr_scheduler = get_training_utilities(name)"
    (finding,) = lint(_IN_A_TUPLE.format(made=made))
    assert (finding.code, finding.location.line) == ("GCS306", 10)
    assert finding.severity is Severity.WARNING


@pytest.mark.parametrize("maker", ["Ramp(optimizer)", "get_ramp(optimizer)"])
def test_a_scheduler_of_an_unknown_kind_may_step_first(
    lint: Callable[[str], tuple[Finding, ...]], maker: str
) -> None:
    made = f"model, optimizer, loader = get_training_utilities(name)\n    lr_scheduler = {maker}"
    assert not lint(_IN_A_TUPLE.format(made=made))
