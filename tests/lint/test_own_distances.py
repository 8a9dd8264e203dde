"""GCS604: roots of the distances of points to one another, each to itself among them."""

from __future__ import annotations

import pytest

from gradcheck_lint.engine import lint_source

_LOSS = """\
import torch

def {name}(x, y, margin):
    {distances}
    return (margin - d).clamp(min=0).mean()
"""


@pytest.mark.parametrize(
    "distances",
    [
        "d = ((x[:, None] - x[None]) ** 2).sum(-1).sqrt()",
        "d = torch.sqrt((x.unsqueeze(1) - x.unsqueeze(0)).pow(2).sum(-1))",
        "d = (x[:, None, :] - x).square().sum(dim=2) ** 0.5",
        "e = x.unsqueeze(0) - x.unsqueeze(1); s = (e ** 2).sum(2); d = s.sqrt()",
        "d = torch.sum((x[:, None] - x[None, :]) ** 2, dim=-1).pow(0.5)",
    ],
)
def test_points_compared_with_themselves(distances):
    assert _found(distances) == [("GCS604", "warning")]


@pytest.mark.parametrize(
    "distances",
    [
        "d = ((x[:, None] - y[None]) ** 2).sum(-1).sqrt()",
        "d = (((x[:, None] - x[None]) ** 2).sum(-1) + 1e-9).sqrt()",
        "d = ((x[:, None] - x[None]) ** 2).sum(-1).clamp(min=1e-9).sqrt()",
        "d = ((x[:, None] - x[None]) ** 2).sum(-1)",
        "d = ((x[1:, None] - x[None, :-1]) ** 2).sum(-1).sqrt()",
        "d = (x[:, None] - x[None]).norm(dim=-1)",
        "d = torch.cdist(x, x)",
        "e = x[:, None] - x[None]; e = e + margin; d = (e ** 2).sum(-1).sqrt()",
    ],
)
def test_other_points_and_safe_roots(distances):
    """A note says that two points may be one, where nothing keeps the root away from zero."""
    assert _found(distances) in ([], [("GCS604", "note")])


@pytest.mark.parametrize(
    "distances",
    [
        "d = (((x[:, None] - x[None]) ** 2).sum(-1) + 1e-9).sqrt()",
        "d = ((x[:, None] - x[None]) ** 2).sum(-1).clamp(min=1e-9).sqrt()",
        "d = (x[:, None] - x[None]).norm(dim=-1)",
        "d = torch.cdist(x, x)",
    ],
)
def test_roots_that_are_kept_away_from_zero(distances):
    assert _found(distances) == []


def test_distances_that_nobody_differentiates():
    distances = "d = ((x[:, None] - x[None]) ** 2).sum(-1).sqrt()"
    assert _found(distances, name="nearest") == []


def test_distances_that_are_differentiated_elsewhere():
    source = """\
import torch

def spread(x):
    return ((x[:, None] - x[None]) ** 2).sum(-1).sqrt().mean()

def train(model, loader, optimizer):
    for x in loader:
        optimizer.zero_grad()
        spread(model(x)).neg().backward()
        optimizer.step()
"""
    assert [found.code for found in lint_source(source.encode(), "spread.py")] == ["GCS604"]


def _found(distances, *, name="contrastive_loss"):
    findings = lint_source(_LOSS.format(name=name, distances=distances).encode(), "loss.py")
    return [(found.code, found.severity.value) for found in findings]


@pytest.mark.parametrize("power", ["torch.pow(*args)", "torch.square(*args)", "torch.pow()"])
def test_a_power_whose_operands_are_not_seen(power):
    distances = f"args = (x, 2); s = {power}.sum(-1); e = s.sqrt(); d = e + (x[:, None] - x[None])"
    assert _found(distances) == []
