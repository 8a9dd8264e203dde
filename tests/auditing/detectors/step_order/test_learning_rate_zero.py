"""GCS315: parameter groups whose learning rate is never anything but 0."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import gradcheck_suite as gs
from gradcheck_suite.findings import Severity

CODE = "GCS315"


def net():
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def groups_of(model, **options):
    held = {"params": model[0].parameters(), "lr": 0.0, **options}
    return [{"params": model[2].parameters()}, held]


def train(model, *optimizers, steps=6, schedule=None):
    for _ in range(steps):
        for optimizer in optimizers:
            optimizer.zero_grad()
        x = torch.randn(8, 4)
        (model(x) - x.sum(1, keepdim=True)).pow(2).mean().backward()
        for optimizer in optimizers:
            optimizer.step()  # <- step
        if schedule is not None:
            schedule.step()


def held_group():
    model = net()
    optimizer = torch.optim.SGD(groups_of(model), lr=0.1)  # <- here
    train(model, optimizer)


def codes(session):
    return {finding.code for finding in session.findings}


def test_it_names_the_group_and_the_line_of_the_optimizer(audited, only, line_of):
    finding = only(audited(held_group), CODE)
    assert finding.severity is Severity.WARNING
    assert finding.location.line == line_of(held_group)
    assert finding.message == (
        "the learning rate of `param_groups[1]` (2 parameters: `model[0].weight`, "
        "`model[0].bias`) of SGD was 0 in each of 6 steps, though there were gradients, so that "
        "nothing of it was trained; expected a rate above 0"
    )
    assert "requires_grad_(False)" in finding.hint
    (step,) = finding.related
    assert step.location.line == line_of(train, "step")
    assert finding.evidence == {
        "steps": 6,
        "optimizer": "SGD",
        "groups": [1],
        "parameters": 2,
        "names": ["model[0].weight", "model[0].bias"],
    }


def test_the_name_of_a_group_is_told(audited, only):
    def loop():
        model = net()
        train(model, torch.optim.AdamW(groups_of(model, name="backbone"), lr=0.1))

    assert '`param_groups[1]` "backbone" (2 parameters: ' in only(audited(loop), CODE).message


def test_several_groups_are_one_finding(audited, only):
    def loop():
        model = net()
        held = [{"params": [each], "lr": 0.0} for each in model[0].parameters()]
        train(model, torch.optim.SGD([*held, {"params": model[2].parameters()}], lr=0.1))

    finding = only(audited(loop), CODE)
    assert finding.evidence["groups"] == [0, 1]
    said = "the learning rates of `param_groups[0]` (1 parameter: `model[0].weight`) and `param_gr"
    assert said in finding.message


def test_optimizers_of_one_line_are_one_finding(audited, only):
    def loop():
        for _ in range(3):
            held_group()

    only(audited(loop), CODE)


def test_the_line_that_adds_the_group_is_related(audited, only, line_of):
    def loop():
        model = net()
        optimizer = torch.optim.SGD(model[2].parameters(), lr=0.1)  # <- here
        optimizer.add_param_group({"params": model[0].parameters(), "lr": 0})  # <- added
        train(model, optimizer)

    finding = only(audited(loop), CODE)
    assert finding.location.line == line_of(loop)
    assert finding.related[0].location.line == line_of(loop, "added")


def test_an_optimizer_made_before_is_told_of_at_its_step(audited, only, line_of):
    model = net()
    optimizer = torch.optim.SGD(groups_of(model), lr=0.1)
    finding = only(audited(lambda: train(model, optimizer)), CODE)
    assert finding.location.line == line_of(train, "step")


def test_nothing_is_told_before_the_end():
    torch.manual_seed(0)
    model = net()
    optimizer = torch.optim.SGD(groups_of(model), lr=0.1)
    with gs.audit(report=False) as session:
        train(model, optimizer, steps=20)
        assert CODE not in codes(session)
    assert CODE in codes(session)
    with session:
        optimizer.param_groups[1]["lr"] = 0.1
        train(model, optimizer)
    assert CODE not in codes(session)


def test_a_group_that_is_added_late_is_followed(audited, only):
    def loop():
        model = net()
        optimizer = torch.optim.SGD(model[2].parameters(), lr=0.1)
        model[0].requires_grad_(False)
        train(model, optimizer, steps=10)
        model[0].requires_grad_(True)
        optimizer.add_param_group({"params": model[0].parameters(), "lr": 0.0})
        train(model, optimizer, steps=30)

    assert only(audited(loop), CODE).evidence["steps"] == 30


def scheduled(steps, rate):
    model = net()
    optimizer = torch.optim.SGD(groups_of(model, lr=rate), lr=0.1)
    factors = [lambda step: 0.9**step, lambda step: step // 100]
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factors)
    train(model, optimizer, steps=steps, schedule=schedule)


@pytest.mark.parametrize(
    ("steps", "rate", "severity"),
    [(8, 0.1, "note"), (12, 0.1, "note"), (13, 0.1, "warning"), (8, 0.0, "warning")],
)
def test_the_beginning_of_a_schedule_is_a_note(audited, only, steps, rate, severity):
    finding = only(audited(lambda: scheduled(steps, rate)), CODE)
    assert finding.severity.value == severity
    assert ("lowered" in finding.evidence) is (severity == "note")


def test_an_optimizer_all_of_whose_groups_are_at_zero_is_told_of_as_that(audited, only):
    def loop():
        model = net()
        train(model, torch.optim.SGD(groups_of(model), lr=0.0))

    only(audited(loop), "GCS313")


def test_where_the_other_group_is_frozen_it_is_told_once(audited, only):
    def loop():
        model = net()
        model[2].requires_grad_(False)
        train(model, torch.optim.SGD(groups_of(model), lr=0.1))

    session = audited(loop)
    assert "GCS313" not in codes(session)
    assert CODE in codes(session)


def few_steps():
    model = net()
    train(model, torch.optim.SGD(groups_of(model), lr=0.1), steps=3)


def raised_in_the_last_step():
    model = net()
    optimizer = torch.optim.SGD(groups_of(model), lr=0.1)
    train(model, optimizer, steps=20)
    optimizer.param_groups[1]["lr"] = 1e-4
    train(model, optimizer, steps=1)


def gradients_of_zero():
    model = net()
    optimizer = torch.optim.SGD(groups_of(model), lr=0.1)
    for _ in range(8):
        optimizer.zero_grad()
        x = torch.randn(8, 4)
        (model[2](model[1](model[0](x) * 0.0))).pow(2).mean().backward()
        optimizer.step()


def rate_in_a_tensor():
    """Nobody asks for its value, which may lie on a GPU."""
    model = net()
    optimizer = torch.optim.SGD(groups_of(model), lr=0.1)
    optimizer.param_groups[1]["lr"] = torch.tensor(0.0)
    train(model, optimizer)


def moved_at_a_rate_of_zero():
    model = net()
    groups = groups_of(model)
    train(model, torch.optim.Rprop(groups, lr=0.01, step_sizes=(1e-4, 1.0)))


@pytest.mark.parametrize(
    "loop",
    [
        few_steps,
        raised_in_the_last_step,
        gradients_of_zero,
        rate_in_a_tensor,
        moved_at_a_rate_of_zero,
    ],
    ids=lambda loop: loop.__name__,
)
def test_what_is_trained_or_may_be_is_not_told_of(audited, loop):
    assert CODE not in codes(audited(loop))
