"""Evaluations of a closure that add up (GCS301), and those that are cleared."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gradcheck_suite.findings import Severity


def fit(clear, *, parts=1, steps=5, before=True):
    model = nn.Linear(3, 1)
    x, y = torch.randn(9, 3), torch.randn(9, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.3, max_iter=4)

    def closure():
        clear(optimizer)
        total = 0.0
        for some, wanted in zip(x.chunk(parts), y.chunk(parts), strict=True):
            loss = (model(some) - wanted).square().mean() / parts
            loss.backward()  # <- here
            total += loss.detach()
        return total

    for _ in range(steps):
        if before:
            optimizer.zero_grad()
        optimizer.step(closure)


def nothing(_optimizer):
    pass


def to_none(optimizer):
    optimizer.zero_grad()


def to_zero(optimizer):
    optimizer.zero_grad(set_to_none=False)


def by_hand(optimizer):
    for parameter in optimizer.param_groups[0]["params"]:
        if parameter.grad is not None:
            parameter.grad.zero_()


def test_evaluations_that_add_up(audited, line_of):
    found = [each for each in audited(lambda: fit(nothing)).findings if each.code == "GCS301"]
    (finding,) = found
    assert finding.severity is Severity.WARNING
    assert finding.location.line == line_of(fit)
    assert "each evaluation of the closure of LBFGS.step() added to the gradients" in (
        finding.message
    )


@pytest.mark.parametrize("clear", [to_none, to_zero, by_hand])
@pytest.mark.parametrize("parts", [1, 3])
def test_evaluations_that_are_cleared(audited, clear, parts):
    found = audited(lambda: fit(clear, parts=parts, before=False)).findings
    assert not [each for each in found if each.code == "GCS301"]
