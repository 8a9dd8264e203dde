"""Short windows whose losses are divided by the length of the others (GCS311)."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gradcheck_suite.findings import Severity

USUAL, LEFT = 4, 2


def train(divisor, *, rescale=None, clip=False, left=LEFT, epochs=4):
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(epochs):
        for length in (USUAL, USUAL, left):
            optimizer.zero_grad()
            for _ in range(length):
                loss = model(torch.randn(6, 4)).square().mean()
                loss = loss / divisor(length)  # <- divided
                loss.backward()
            if rescale is not None:
                rescale(model, length)
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()


@pytest.mark.parametrize("clip", [False, True])
def test_the_rest_of_an_epoch_is_divided_by_the_usual_number(audited, line_of, clip):
    session = audited(lambda: train(lambda _length: USUAL, clip=clip))
    assert session.report.at_least(Severity.WARNING) == ()
    (finding,) = (each for each in session.findings if "were divided by" in each.message)
    assert (finding.code, finding.severity) == ("GCS311", Severity.NOTE)
    assert finding.location.line == line_of(train, "divided")
    assert finding.message == (
        "4 of 12 calls of SGD.step() used fewer backward() calls, 2 in place of 4, whose losses "
        "were divided by 4 all the same: the gradient is 2/4 of that of their mean; expected the "
        "number that the step uses"
    )
    assert [each.message for each in finding.related] == [
        "accumulated here",
        "this step used them",
    ]


def scale_up(model, length):
    for parameter in model.parameters():
        parameter.grad.mul_(USUAL / length)


@pytest.mark.parametrize(
    ("divisor", "options"),
    [
        (lambda length: length, {}),  # by what is in the window
        (lambda _length: 1, {}),  # a sum
        (lambda _length: 8, {}),  # by another number
        (lambda _length: USUAL, {"rescale": scale_up}),
        (lambda _length: USUAL, {"left": 3}),  # a little shorter
        (lambda _length: USUAL, {"left": USUAL}),
        (lambda _length: USUAL, {"epochs": 2}),  # not yet a habit
    ],
)
def test_what_is_right_or_not_shown(audited, divisor, options):
    session = audited(lambda: train(divisor, **options))
    assert not any("were divided by" in each.message for each in session.findings)


def test_two_losses_of_one_step(audited):
    def loop():
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for step in range(12):
            optimizer.zero_grad()
            (model(torch.randn(6, 4)).square().mean() / 2).backward()
            if step % 3:
                (model(torch.randn(6, 4)).abs().mean() / 2).backward()
            optimizer.step()

    assert not any("were divided by" in each.message for each in audited(loop).findings)
