"""What the help of a schedule that nobody steps calls it."""

from __future__ import annotations

import torch
from torch import nn
from torch.optim import lr_scheduler


# fmt: off
def made_on_one_line():
    model = nn.Linear(4, 1); optimizer = torch.optim.SGD(model.parameters(), 0.1); fading = lr_scheduler.StepLR(optimizer, 9)  # noqa: E501, E702
    # fmt: on
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
    assert fading.last_epoch == 0


def two_on_one_line():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    # fmt: off
    short = lr_scheduler.StepLR(optimizer, 9); long = lr_scheduler.ExponentialLR(optimizer, 0.9)  # noqa: E702
    # fmt: on
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
        short.step()
    assert long.last_epoch == 0


def test_the_scheduler_is_named_and_not_what_stands_beside_it(audited, only):
    finding = only(audited(made_on_one_line), "GCS320")
    assert finding.hint == "call fading.step() after optimizer.step(), or after each epoch"


def test_of_two_schedulers_on_a_line_the_one_that_rests_is_named(audited, only):
    finding = only(audited(two_on_one_line), "GCS320")
    assert finding.hint.startswith("call long.step()")
    assert "another scheduler of this optimizer was stepped" in finding.evidence["lowered"]
