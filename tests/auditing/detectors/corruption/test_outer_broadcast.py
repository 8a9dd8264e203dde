"""Columns that meet vectors in a loss (GCS614), and matrices of pairs that are meant."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as everybody writes it

from gradcheck_suite.findings import Severity


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, x):
        return self.body(x)


def train(loss_of, sizes=(6, 6, 6, 6)):
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for size in sizes:
        loss = loss_of(model, torch.randn(size, 3), torch.rand(size))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def codes(session):
    return [finding.code for finding in session.findings]


def squared(model, x, y):
    error = model(x) - y
    return error.pow(2).mean()  # <- here


def absolute(model, x, y):
    return (y - model(x)).abs().mean()  # <- here


def two_sided(model, x, y):
    error = y - model(x)
    return torch.maximum(0.9 * error, -0.1 * error).mean()  # <- here


def likelihood(model, x, y):
    p = model(x).sigmoid()
    return -(y * p.log() + (1 - y) * (1 - p).log()).mean()  # <- here


def weighted(model, x, y):
    each = (model(x).squeeze(-1) - y).pow(2)
    return (each * torch.rand(len(x), 1)).mean()  # <- here


def both_live(model, x, y):
    value, other = model(x), model(x + 1).squeeze(-1)
    return (value * other).mean() + y.sum() * 0  # <- here


MISTAKES = [squared, absolute, two_sided, likelihood, weighted, both_live]


@pytest.mark.parametrize("loss", MISTAKES)
def test_a_column_against_a_vector_is_told_at_its_line(audited, only, line_of, loss):
    finding = only(audited(lambda: train(loss)), "GCS614")
    assert finding.severity is Severity.WARNING
    assert finding.location.line == line_of(loss)
    assert "[6, 6]" in finding.message
    assert finding.evidence["result"] == [6, 6]


def test_where_the_other_may_be_a_matrix_it_is_a_note_until_a_batch_of_another_size_comes(
    audited, only
):
    def loss(model, x, y):
        return (model(x).squeeze(-1) - y[:, None]).pow(2).mean()

    finding = only(audited(lambda: train(loss)), "GCS614")
    assert finding.severity is Severity.NOTE
    finding = only(audited(lambda: train(loss, (6, 6, 5, 6))), "GCS614")
    assert finding.severity is Severity.WARNING


def of_one_shape(model, x, y):
    return (model(x).squeeze(-1) - y).pow(2).mean()


def columns(model, x, y):
    return (model(x) - y[:, None]).pow(2).mean()


def a_margin_between_all_pairs(model, x, y):
    scores = model(x).squeeze(-1)
    return F.relu(1 - (scores[:, None] - scores)).mean() + y.sum() * 0


def pairs_by_unsqueeze(model, x, y):
    scores = model(x).squeeze(-1)
    return (scores.unsqueeze(1) - y).pow(2).mean()


def distances(model, x, y):
    hidden = model.body[:2](x)
    squares = hidden.pow(2).sum(1, keepdim=True) + hidden.pow(2).sum(1) - 2 * hidden @ hidden.T
    return squares.mean() + y.sum() * 0


def one_feature_for_all(model, x, y):
    return (model.body[:2](x) * model.body[2].weight[0]).mean() + y.sum() * 0


def scale_of_each_row(model, x, y):
    return (model.body[:2](x) * y[:, None]).mean()


def a_kernel(model, x, y):
    hidden = model.body[:2](x)
    return torch.exp(-(hidden @ hidden.T) * y).mean()


CORRECT = [
    *(of_one_shape, columns, a_margin_between_all_pairs, pairs_by_unsqueeze, distances),
    *(one_feature_for_all, scale_of_each_row, a_kernel),
]


@pytest.mark.parametrize("size", [6, 8])
@pytest.mark.parametrize("loss", CORRECT)
def test_pairs_that_are_meant_are_no_finding(audited, loss, size):
    assert "GCS614" not in codes(audited(lambda: train(loss, (size,) * 4)))


def test_a_batch_of_one_is_no_matrix(audited):
    assert "GCS614" not in codes(audited(lambda: train(squared, (1,) * 4)))
