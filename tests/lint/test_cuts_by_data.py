"""GCS401 and GCS405: graphs that end at ``.data``, with or without a name before it."""

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


def _found(made):
    findings = lint_source(_STEP.replace("MADE", made).encode(), "step.py")
    return [(found.code, found.location.line) for found in findings if found.code < "GCS9"]
