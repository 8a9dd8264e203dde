"""GCS201 when an exception, such as that of sys.exit, ends the function that holds the graphs."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import nn

import gradcheck_suite as gs


def train(steps, end):
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    history = []
    for _ in range(steps):
        loss = model(torch.ones(2, 3)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss)  # <- kept
    end()


def fail():
    raise ValueError("diverged")


@pytest.mark.parametrize("steps", [3, 8, 40])
@pytest.mark.parametrize(("end", "raised"), [(sys.exit, SystemExit), (fail, ValueError)])
def test_one_list_is_one_finding_under_its_name(line_of, steps, end, raised):
    with pytest.raises(raised), gs.audit() as session:
        train(steps, end)
    (finding,) = session.report.findings
    assert finding.code == "GCS201"
    assert finding.location.line == line_of(train, "kept")
    assert "list `history` in train()" in finding.message
    assert finding.evidence["graphs"] == steps


def keep_one_graph():
    for _ in range(6):
        model = nn.Linear(3, 1)
        loss = model(torch.ones(2, 3)).square().mean()
        loss.backward()
    fail()


def test_nothing_is_said_of_the_graphs_of_one_step_in_a_traceback():
    with pytest.raises(ValueError, match="diverged"), gs.audit() as session:
        keep_one_graph()
    assert not session.report.findings
