"""GCS401 and GCS405: graphs that end at ``.data``, and numbers among the terms of a loss."""

from __future__ import annotations

import pytest

from gradcheck_lint.engine import lint_source

_STEP = """\
import torch
import torch.nn.functional as F
from torch.autograd import Variable

def step(model, other, x, y, optimizer):
    optimizer.zero_grad()
    out = model(x)
    loss = F.mse_loss(out, y)
    MADE
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    "made",
    [
        "loss = Variable(loss.data, requires_grad=True)",
        "loss = Variable(F.mse_loss(out, y).data, requires_grad=True)",
        "loss = Variable(model(x).mean().data, requires_grad=True)",
        "loss = torch.tensor(F.mse_loss(out, y).data, requires_grad=True)",
    ],
)
def test_a_loss_that_is_forced_to_require_grad(made):
    assert _found(made) == [("GCS405", 9)]


@pytest.mark.parametrize(
    "made", ["loss = F.mse_loss(model(x).data, y)", "loss = F.mse_loss(out.data, y).mean()"]
)
def test_a_loss_of_data(made):
    assert _found(made) == [("GCS401", 9)]


@pytest.mark.parametrize(
    "made",
    [
        "loss = F.mse_loss(out, other(x).data)",
        "loss = loss / loss.data",
        "loss = loss + 0.1 * F.mse_loss(out, y).data",
        "shown = F.mse_loss(out, y).data",
        "loss = F.mse_loss(model(Variable(x.data, requires_grad=True)), y)",
        "loss = F.mse_loss(model(Variable(other(x).data, requires_grad=True)), y)",
    ],
)
def test_data_beside_a_graph(made):
    assert _found(made) == []


@pytest.mark.parametrize(
    ("made", "is_lost"),
    [
        ("size = sum(p.norm() for p in model.parameters()); loss = loss + 2 * size.item()", True),
        ("size = out.norm(); loss = loss + size.item() * 2.0", True),
        ("size = out.norm(); loss = loss + 0.1 * size", False),
        ("size = out.norm(); loss = loss * (1 + size.item())", False),
        ("size = y.norm(); loss = loss + 0.1 * size.item()", False),
    ],
)
def test_a_weighted_number_beside_a_loss(made, is_lost):
    assert _found(made) == ([("GCS401", 9)] if is_lost else [])


def _found(made):
    findings = lint_source(_STEP.replace("MADE", made).encode(), "step.py")
    return [(found.code, found.location.line) for found in findings if found.code < "GCS9"]
