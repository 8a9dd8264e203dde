"""GCS306: schedulers that step before their optimizer, or more often."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import StepLR

from gradcheck_suite.findings import Severity

pytestmark = pytest.mark.filterwarnings("ignore:Detected call of")
CODE = "GCS306"


def trained():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    return model, optimizer, StepLR(optimizer, 4)


def train(model, optimizer):
    optimizer.zero_grad()
    model(torch.randn(6, 4)).square().mean().backward()
    optimizer.step()


def each_micro_batch(first=3):
    model, optimizer, scheduler = trained()
    for turn in range(24):
        model(torch.randn(6, 4)).square().mean().backward()
        if turn % 4 == first:
            optimizer.step()
            optimizer.zero_grad()
        scheduler.step()  # <- here


def test_a_scheduler_that_steps_for_each_micro_batch_is_told(audited, only, line_of):
    finding = only(audited(each_micro_batch), CODE)
    assert finding.severity is Severity.WARNING
    assert finding.location.line == line_of(each_micro_batch)
    assert "StepLR.step() ran up to 4 times for each SGD.step()" in finding.message


def scheduler_of_another_optimizer():
    model, _, scheduler = trained()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(6):
        train(model, optimizer)
        scheduler.step()  # <- here


def test_a_scheduler_whose_optimizer_never_steps_is_told(audited, only, line_of):
    finding = only(audited(scheduler_of_another_optimizer), CODE)
    assert finding.severity is Severity.WARNING
    assert finding.location.line == line_of(scheduler_of_another_optimizer)
    assert "schedules a SGD that never stepped, while another optimizer took 6 steps" in (
        finding.message
    )


def once_before_the_loop():
    model, optimizer, scheduler = trained()
    scheduler.step()
    for _ in range(3):
        train(model, optimizer)
    scheduler.step()


def test_where_torch_warns_there_is_a_note_at_least(audited, only):
    finding = only(audited(once_before_the_loop), CODE)
    assert finding.severity is Severity.NOTE
    assert finding.evidence["lowered"] == ("it did not come before the optimizer's step again",)


def after_each_epoch():
    model, optimizer, scheduler = trained()
    for _ in range(4):
        for _ in range(5):
            train(model, optimizer)
        scheduler.step()


def after_each_step_of_two_backwards():
    model, optimizer, scheduler = trained()
    for _ in range(6):
        model(torch.randn(6, 4)).square().mean().backward()
        train(model, optimizer)
        scheduler.step()


@pytest.mark.parametrize("loop", [after_each_epoch, after_each_step_of_two_backwards])
def test_schedulers_in_their_place_are_not_told_of(audited, loop):
    assert not [each for each in audited(loop).findings if each.code == CODE]


def test_a_scheduler_of_the_optimizer_that_was_replaced(audited, line_of):
    model = nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 1))

    def loop():
        model[0].requires_grad_(False)
        optimizer = torch.optim.SGD(model[1].parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        for epoch in range(8):
            if epoch == 3:
                model[0].requires_grad_(True)
                optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for _ in range(2):
                optimizer.zero_grad()
                model(torch.ones(3, 2)).pow(2).mean().backward()
                optimizer.step()
            scheduler.step()  # <- here

    (finding,) = [each for each in audited(loop).findings if each.code == "GCS306"]
    assert finding.severity.value == "warning"
    assert finding.location.line == line_of(loop)
    assert "still schedules a SGD that steps no more" in finding.message
    assert "took the last 10 steps" in finding.message


@pytest.mark.parametrize("turns", [1, 2, 8])
def test_optimizers_that_take_turns_over_the_same_parameters(audited, turns):
    model = nn.Linear(2, 1)

    def loop():
        both = [torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(2)]
        schedulers = [StepLR(each, 5) for each in both]
        for step in range(16):
            turn = step // turns % 2
            both[turn].zero_grad()
            model(torch.ones(3, 2)).pow(2).mean().backward()
            both[turn].step()
            schedulers[turn].step()

    assert CODE not in [each.code for each in audited(loop).findings]
