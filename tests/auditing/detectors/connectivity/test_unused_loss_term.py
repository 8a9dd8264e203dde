"""Terms of a loss that reach only parameters whose gradients no step ever uses."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gradcheck_suite.severity import Severity

STEPS = 6


class Networks:
    def __init__(self):
        torch.manual_seed(0)
        self.maker, self.judge = nn.Linear(3, 4), nn.Linear(4, 2)
        self.of_maker = torch.optim.Adam(self.maker.parameters(), lr=0.01)
        self.of_judge = torch.optim.SGD(self.judge.parameters(), lr=0.01)

    def batch(self):
        return torch.randn(5, 3), torch.randn(5, 4)

    @torch.no_grad()
    def features(self, real):
        return self.judge(real)

    def train_judge(self, real, made):
        self.of_judge.zero_grad()
        (self.judge(made.detach()).mean() - self.judge(real).mean()).backward()
        self.of_judge.step()


def features_of_what_is_detached(steps=STEPS, begins=0):
    nets = Networks()
    for step in range(steps):
        x, real = nets.batch()
        made = nets.maker(x)
        loss = nn.functional.l1_loss(made, real)
        if step >= begins:
            loss = loss - nets.judge(made).mean()
            loss = loss + 2.0 * nn.functional.l1_loss(
                nets.judge(made.detach()), nets.features(real)
            )
        nets.of_maker.zero_grad()
        loss.backward()  # <- here
        nets.of_maker.step()
        nets.train_judge(real, made)


@pytest.mark.parametrize(("steps", "begins"), [(6, 0), (40, 9)])
def test_a_term_that_trains_nothing_that_is_stepped(audited, only, line_of, steps, begins):
    session = audited(lambda: features_of_what_is_detached(steps, begins))
    finding = only(session, "GCS411")
    assert finding.severity is Severity.WARNING
    assert finding.location.line == line_of(features_of_what_is_detached)
    assert finding.message == (
        "1 of 3 terms of this loss reaches only parameters of an optimizer (SGD) that clears these "
        "gradients before it steps: it adds to the value of the loss and trains nothing; expected "
        "each term to reach what is stepped after this backward()"
    )
    assert session.report.not_covered == ()


def features_that_reach_the_maker():
    nets = Networks()
    for _ in range(STEPS):
        x, real = nets.batch()
        made = nets.maker(x)
        loss = nn.functional.l1_loss(made, real)
        loss = loss + 2.0 * nn.functional.l1_loss(nets.judge(made), nets.features(real))
        nets.of_maker.zero_grad()
        loss.backward()
        nets.of_maker.step()
        nets.train_judge(real, made)


def both_step_on_one_loss():
    nets = Networks()
    for _ in range(STEPS):
        x, real = nets.batch()
        loss = nn.functional.l1_loss(nets.maker(x), real) + nets.judge(real).square().mean()
        nets.of_maker.zero_grad()
        nets.of_judge.zero_grad()
        loss.backward()
        nets.of_maker.step()
        nets.of_judge.step()


def in_turns():
    nets = Networks()
    for step in range(2 * STEPS):
        x, real = nets.batch()
        loss = nn.functional.l1_loss(nets.maker(x), real) + nets.judge(real).square().mean()
        nets.of_maker.zero_grad()
        nets.of_judge.zero_grad()
        loss.backward()
        (nets.of_maker if step % 2 else nets.of_judge).step()


def the_other_waits_until_the_warm_up_is_over():
    nets = Networks()
    for step in range(3 * STEPS):
        x, real = nets.batch()
        loss = nn.functional.l1_loss(nets.maker(x), real) + nets.judge(real).square().mean()
        nets.of_maker.zero_grad()
        nets.of_judge.zero_grad()
        loss.backward()
        nets.of_maker.step()
        if step > STEPS:
            nets.of_judge.step()


def the_other_adds_up_and_steps_later():
    nets = Networks()
    for step in range(4 * STEPS):
        x, real = nets.batch()
        loss = nn.functional.l1_loss(nets.maker(x), real) + nets.judge(real).square().mean() / 4
        nets.of_maker.zero_grad()
        loss.backward()
        nets.of_maker.step()
        if step % 4 == 3:
            nets.of_judge.step()
            nets.of_judge.zero_grad()


def a_term_of_what_nobody_owns():
    nets = Networks()
    image = torch.randn(5, 4, requires_grad=True)
    seen = torch.zeros(5, 4)
    for _ in range(STEPS):
        x, real = nets.batch()
        made = nets.maker(x)
        loss = (
            nn.functional.l1_loss(made, real) - nets.judge(made).mean() + nets.judge(image).mean()
        )
        nets.of_maker.zero_grad()
        loss.backward()
        nets.of_maker.step()
        seen += image.grad
        image.grad = None
        nets.train_judge(real, made)


@pytest.mark.parametrize(
    "loop",
    [
        features_that_reach_the_maker,
        both_step_on_one_loss,
        in_turns,
        the_other_waits_until_the_warm_up_is_over,
        the_other_adds_up_and_steps_later,
        a_term_of_what_nobody_owns,
    ],
)
def test_terms_that_are_used(audited, loop):
    session = audited(loop)
    assert [finding for finding in session.findings if finding.code == "GCS411"] == []
    assert not [line for line in session.report.not_covered if "bug in gradcheck" in line]
