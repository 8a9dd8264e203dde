"""Means over uneven micro-batches that weigh the same (GCS311), and those that do not."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as everybody writes it

from gradcheck_suite.findings import Severity

LENGTHS = (12, 3, 8, 2)
IGNORED = -100


def tokens(length, width=12):
    x, y = torch.randn(width, 4), torch.randint(5, (width,))
    y[length:] = IGNORED
    return x, y


def loop(loss_of, lengths=LENGTHS, steps=6):
    """Accumulate micro-batches with so many tokens each."""
    model = nn.Linear(4, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        window = [tokens(length) for length in lengths]
        optimizer.zero_grad()
        for x, y in window:
            loss_of(model(x), y, window).backward()
        optimizer.step()


def mean_of_means(logits, y, window):
    return F.cross_entropy(logits, y, ignore_index=IGNORED) / len(window)  # <- here


def by_a_module(logits, y, window):
    return nn.CrossEntropyLoss()(logits, y) * 0.25  # <- here


def of_a_mask(logits, y, window):
    each = F.cross_entropy(logits, y, reduction="none")
    return each[y != IGNORED].mean() / len(window)  # <- here


@pytest.mark.parametrize(
    ("loss", "severity"),
    [
        (mean_of_means, Severity.WARNING),
        (by_a_module, Severity.WARNING),
        (of_a_mask, Severity.NOTE),
    ],
)
def test_tokens_that_weigh_differently_are_told_at_the_mean(audited, only, line_of, loss, severity):
    finding = only(audited(lambda: loop(loss)), "GCS311")
    assert finding.severity is severity
    assert finding.location.line == line_of(loss)
    assert "means over 12, 3, 8, 2 elements" in finding.message
    assert "6.0 times" in finding.message
    assert finding.evidence["elements"] == [12, 3, 8, 2]


def of_all_tokens(logits, y, window):
    count = sum(int((each != IGNORED).sum()) for _, each in window)
    return F.cross_entropy(logits, y, reduction="sum") / count


def weighted_by_tokens(logits, y, window):
    count = sum(int((each != IGNORED).sum()) for _, each in window)
    return F.cross_entropy(logits, y) * int((y != IGNORED).sum()) / count


def weighted_by_a_tensor(logits, y, window):
    count = sum((each != IGNORED).sum() for _, each in window)
    return F.cross_entropy(logits, y) * ((y != IGNORED).sum() / count)


@pytest.mark.parametrize("loss", [of_all_tokens, weighted_by_tokens, weighted_by_a_tensor])
def test_tokens_that_weigh_the_same_are_no_finding(audited, loss):
    assert audited(lambda: loop(loss)).findings == ()


def test_micro_batches_of_nearly_one_size_are_no_finding(audited):
    assert audited(lambda: loop(mean_of_means, (12, 11, 12, 9))).findings == ()


def test_one_backward_for_each_step_is_no_accumulation(audited):
    def program():
        model = nn.Linear(4, 5)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for length in LENGTHS * 2:
            x, y = tokens(length)
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()

    assert audited(program).findings == ()


def test_losses_of_two_lines_are_two_terms(audited):
    def program():
        model = nn.Linear(4, 5)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(6):
            (x, y), (other, target) = tokens(12), tokens(2)
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            F.cross_entropy(model(other), target).backward()
            optimizer.step()

    assert audited(program).findings == ()
