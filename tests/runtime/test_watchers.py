"""Checks of ours inside an audit are no part of the program that is audited."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import gradcheck_suite as gs


class _Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * 2 * x


def _check_gradients():
    assert gs.check_gradients(_Square, (_input(),), order=2).ok


def _localize():
    assert gs.localize(nn.Sequential(nn.Linear(3, 3), nn.Tanh()).double(), _input()).ok


def _gradcheck():
    assert gs.gradcheck(_Square.apply, (_input(),))


def _gradgradcheck():
    assert gs.gradgradcheck(_Square.apply, (_input(),))


def _input():
    return torch.randn(4, 3, dtype=torch.float64, requires_grad=True)


CHECKS = [_check_gradients, _localize, _gradcheck, _gradgradcheck]


def _steps(number, between=lambda: None):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(number):
        optimizer.zero_grad()
        model(torch.randn(5, 3)).square().mean().backward()
        between()
        optimizer.step()
    return model


@pytest.mark.parametrize("check", CHECKS)
def test_nothing_is_said_of_what_a_check_does(check):
    with gs.audit(report=False) as session:
        check()
    assert session.findings == ()
    assert session.report.summary["backwards"] == 0


@pytest.mark.parametrize("check", CHECKS)
def test_the_audit_goes_on_where_it_was(check):
    with gs.audit(report=False) as alone:
        _steps(6)
    with gs.audit(report=False) as session:
        _steps(6, between=check)
    assert session.findings == ()
    assert session.report.summary == alone.report.summary
    assert session.report.not_covered == alone.report.not_covered
    assert session.ledger.to_dict()["optimizers"] == alone.ledger.to_dict()["optimizers"]


@pytest.mark.parametrize("check", CHECKS)
def test_a_mistake_on_both_sides_of_a_check_is_found(check):
    def body():
        kept = []
        model = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(8):
            loss = model(torch.randn(5, 3)).square().mean()
            loss.backward()
            optimizer.step()
            kept.append(loss)
            if step == 3:
                check()

    with gs.audit(report=False) as session:
        body()
    assert {"GCS201", "GCS301"} <= {finding.code for finding in session.findings}


def test_what_a_check_raises_leaves_the_audit_watching():
    with gs.audit(report=False) as session:
        with pytest.raises(gs.UsageError):
            gs.check_gradients(_Square, (torch.ones(2),))
        _steps(2)
    assert session.report.summary["steps"] == 2
    assert session.report.summary["saved_tensors"] > 0
