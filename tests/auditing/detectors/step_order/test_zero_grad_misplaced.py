"""Gradients that are cleared between backward and step."""

from __future__ import annotations

import torch
from torch import nn


def test_an_optimizer_that_was_there_before_is_told_of_like_any_other(audited, only, line_of):
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loop():
        for _ in range(8):
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.zero_grad()  # <- here
            optimizer.step()

    finding = only(audited(loop), "GCS302")
    assert finding.location.line == line_of(loop)


def test_one_that_was_there_before_and_steps_too_early_is_no_such_mistake(audited):
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loop():
        for _ in range(8):
            optimizer.step()
            optimizer.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()

    session = audited(loop)
    assert not [each for each in session.findings if each.code == "GCS302"], session.findings
