"""Wrong gradients are held to smaller steps, and that costs little for many of them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gradcheck_suite import check_gradients


class SavedInverse(torch.autograd.Function):
    """RMS normalisation whose backward takes a saved intermediate for a constant."""

    @staticmethod
    def forward(ctx, x, weight):
        inverse = torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + 1e-6)
        ctx.save_for_backward(x, weight, inverse)
        return x * inverse * weight

    @staticmethod
    def backward(ctx, grad_output):
        x, weight, inverse = ctx.saved_tensors
        scaled = grad_output * weight
        inner = (scaled * x).mean(dim=-1, keepdim=True)
        return inverse * scaled - inverse.pow(3) * x * inner, (grad_output * x * inverse).sum(0)


class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(12, 16)
        self.weight = nn.Parameter(torch.ones(16))
        self.last = nn.Linear(16, 8)

    def forward(self, x):
        return self.last(SavedInverse.apply(self.first(x), self.weight).tanh())


class TwoTowers(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = Tower(), Tower()

    def forward(self, x, y):
        return self.one(x) @ self.two(y).T


def test_many_wrong_second_orders_take_few_evaluations():
    torch.manual_seed(0)
    report = check_gradients(TwoTowers(), (torch.randn(6, 12), torch.randn(6, 12)))
    assert {finding.rule for finding in report.findings} == {"wrong-second-order"}
    wrong = [verdict for verdict in report.verdicts if verdict.status == "fail"]
    assert len(wrong) > 8
    assert report.summary["evaluations"] < 2000


def zigzag(x):
    """Climb by 1.9 or by 0.1: usual float32 steps stride over many kinks and see a slope of 1."""
    return x + 0.9 * (torch.remainder(x, 2.0**-10) - 2.0**-11).abs()


@pytest.mark.parametrize("count", [1, pytest.param(9, marks=pytest.mark.slow)])
def test_gradients_that_steps_stride_over_are_not_wrong(count):
    torch.manual_seed(0)
    inputs = [torch.randn(20, requires_grad=True) for _ in range(count)]
    report = check_gradients(lambda *xs: sum(map(zigzag, xs)), tuple(inputs), order=1)
    assert not report.findings
    reasons = {verdict.reason for verdict in report.verdicts}
    assert any("stride over" in reason for reason in reasons if reason)


class Halved(torch.autograd.Function):
    @staticmethod
    def forward(_, x):
        return x.sin()

    @staticmethod
    def backward(_, grad_output):
        return 0.5 * grad_output


def test_many_wrong_gradients_stay_wrong():
    inputs = tuple(torch.full((20,), 0.1 * n, requires_grad=True) for n in range(9))
    report = check_gradients(lambda *xs: sum(map(Halved.apply, xs)), inputs)
    assert {verdict.status for verdict in report.verdicts} == {"fail"}
