"""NaN and infinity on their way into parameters, and values that never get there."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as everybody writes it

import gradcheck_suite as gs
from gradcheck_suite.auditing.detectors.corruption import non_finite_gradient as non_finite
from gradcheck_suite.findings import Severity

STEPS = 4


def train(loss_of, steps=STEPS):
    def loop():
        net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for step in range(steps):
            optimizer.zero_grad()
            loss_of(net(torch.randn(5, 4)), step).backward()
            optimizer.step()

    loop.__name__ = loss_of.__name__
    return loop


def root_of_zero(out, _step):
    gap = (out - out.detach()).pow(2).sum(1)
    return out.sum() + gap.sqrt().mean()  # <- here


def branch_not_taken(out, _step):
    square = (out - out.detach()).pow(2)
    return out.sum() + torch.where(square > 0, square.sqrt(), 0.0).sum()  # <- here


def power_below_one(out, _step):
    gap = (out - out.detach()).abs()
    return out.sum() + gap.pow(0.5).sum()  # <- here


def arccosine_of_one(out, _step):
    cosine = out * 0 + 1
    return cosine.acos().sum()  # <- here


def infinite_in_forward(out, _step):
    return (out.abs() * 0).log().sum()  # <- here


def overflowing_forward(out, _step):
    return (out.abs() * 1000 + 100).exp().sum()  # <- here


BUGS = [
    (root_of_zero, "Sqrt", False),
    (branch_not_taken, "Sqrt", False),
    (power_below_one, "Pow", False),
    (arccosine_of_one, "Acos", False),
    (infinite_in_forward, None, True),
    (overflowing_forward, "Exp", True),
]


@pytest.mark.parametrize("case", BUGS, ids=lambda case: case[0].__name__)
def test_the_op_that_made_them_is_told_by_name_and_line(audited, only, line_of, case):
    loss_of, operation, in_forward = case
    finding = only(audited(train(loss_of)), "GCS604")
    assert finding.evidence["in_forward"] is in_forward
    assert finding.evidence["first_step"] == 0
    if operation is not None:
        assert finding.evidence["operation"] == operation
        assert finding.location.line == line_of(loss_of)


def test_one_that_comes_later_is_told_with_its_backward(audited, only):
    def loss_of(out, step):
        gap = (out - out.detach()).pow(2).sum(1) + (0 if step == 5 else 1)
        return out.sum() + gap.sqrt().mean()

    finding = only(audited(train(loss_of, 8)), "GCS604")
    assert finding.evidence["first_step"] == 5
    assert "the loss was finite" in finding.message


def safe_root(out, _step):
    gap = (out - out.detach()).pow(2).sum(1)
    return out.sum() + (gap + 1e-12).sqrt().mean()


def vector_norm(out, _step):
    return out.sum() + torch.linalg.vector_norm(out - out.detach(), dim=1).mean()


def masked_attention(out, _step):
    scores = out.masked_fill(torch.eye(5, 3).bool(), -torch.inf)
    return scores.softmax(1).pow(2).sum()


def infinite_target(out, _step):
    return F.cross_entropy(out, torch.tensor([0, 1, 2, -100, -100]))


@pytest.mark.parametrize(
    "loss_of",
    [safe_root, vector_norm, masked_attention, infinite_target],
    ids=lambda loss_of: loss_of.__name__,
)
def test_nothing_is_said_of_gradients_that_are_finite(audited, loss_of):
    assert audited(train(loss_of)).findings == ()


def test_a_sum_that_overflows_is_no_proof(audited):
    # Twelve entries of up to 5e37 add up to more than a float32 holds.
    assert audited(train(lambda out, _: (out * 1e37).sum(), steps=1)).findings == ()


@pytest.mark.parametrize("fused", [False, True], ids=["skipped step", "fused step"])
def test_a_scaler_that_skips_the_step_is_left_alone(audited, fused):
    def loop():
        net = nn.Linear(4, 1)
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.01, fused=fused)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)
        for step in range(STEPS):
            optimizer.zero_grad()
            factor = float("inf") if step == 1 else 1.0
            scaler.scale(net(torch.randn(5, 4)).mean() * factor).backward()
            scaler.step(optimizer)
            scaler.update()

    assert audited(loop).findings == ()


def test_what_a_guard_of_the_program_hides_is_a_warning(audited, only):
    def loop():
        net = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for _ in range(STEPS):
            optimizer.zero_grad()
            (net(torch.randn(5, 4)) * 0).sqrt().sum().backward()
            norm = nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            if torch.isfinite(norm):
                optimizer.step()

    finding = only(audited(loop), "GCS604")
    assert finding.severity is Severity.WARNING
    assert "no step used the gradients" in finding.message
    assert finding.evidence["operation"] == "Sqrt"


def looks_of(backwards, *, before=lambda _: None, inside=lambda _: None):
    calls = 0

    def count(frame, event, _):
        nonlocal calls
        calls += event == "call" and frame.f_code.co_name == "look"

    x = torch.randn(3, requires_grad=True)
    y = x.exp().sin().sum()
    kept = [before(x)]
    with gs.audit():
        kept.append(inside(x))
        sys.setprofile(count)
        try:
            for _ in range(backwards):
                torch.autograd.grad(y, x, retain_graph=True)
        finally:
            sys.setprofile(None)
    return calls


def make_sgd(x):
    return torch.optim.SGD([x], lr=0.1)


def test_backwards_through_one_graph_do_not_pile_up_hooks():
    once = looks_of(1, before=make_sgd)
    assert once > 0
    assert looks_of(8, before=make_sgd) == 8 * once


def test_nodes_are_watched_only_where_an_optimizer_may_step(monkeypatch):
    made = []
    monkeypatch.setattr(non_finite, "optimizer_was_made", lambda: bool(made))
    assert looks_of(1) == 0
    assert looks_of(1, inside=make_sgd) > 0
    made.append("before the audit, and unknown to it")
    assert looks_of(1) > 0


def test_the_op_is_told_in_the_first_step_of_an_optimizer_made_before_the_audit(only):
    weight = torch.ones(3, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    with gs.audit() as session:
        (weight - weight.detach()).sqrt().sum().backward()
        optimizer.step()
    assert only(session, "GCS604").evidence["operation"] == "Sqrt"


def test_each_of_several_optimizers_is_looked_at_after_the_first_steps(audited, only):
    """Steps of both count, so that one has the even numbers and the other the odd ones."""

    def run():
        torch.manual_seed(0)
        layers = [nn.Linear(3, 2), nn.Linear(3, 2)]
        first, second = (torch.optim.SGD(each.parameters(), lr=0.01) for each in layers)
        for turn in range(80):
            for layer, optimizer in zip(layers, (first, second), strict=True):
                optimizer.zero_grad()
                out = layer(torch.randn(4, 3))
                loss = out.square().mean()
                if layer is layers[1] and turn >= 30:
                    loss = loss + (out - out.detach()).pow(2).sum(1).sqrt().mean()
                loss.backward()
                optimizer.step()
                if turn >= 30:
                    layer.reset_parameters()  # nothing of it reaches the losses that follow

    finding = only(audited(run), "GCS604")
    assert "2 of 2 parameters" in finding.message
    assert "the loss was finite" in finding.message
