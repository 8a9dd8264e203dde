"""Functions that compute in float32 whatever they are given are checked as float32 ones are."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gradcheck_suite import check_gradients


class Square(torch.autograd.Function):
    factor = 2.0

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (x.float() ** 2).to(x.dtype)

    @classmethod
    def vjp_of(cls, x, grad):
        return (cls.factor * x.float() * grad.float()).to(x.dtype)

    @staticmethod
    def backward(ctx, grad):
        return Square.vjp_of(ctx.saved_tensors[0], grad)


class WrongSquare(Square):
    @staticmethod
    def backward(ctx, grad):
        return 1.03 * Square.vjp_of(ctx.saved_tensors[0], grad)


class NumPyTanh(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.from_numpy(np.tanh(x.detach().numpy().astype("float32"))).to(x.dtype)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * (1 - x.tanh() ** 2)


def draw():
    generator = torch.Generator().manual_seed(3)
    return torch.randn(4, 3, dtype=torch.float64, generator=generator, requires_grad=True)


@pytest.mark.parametrize("function", [Square, NumPyTanh])
def test_it_passes_and_the_report_says_how(function):
    report = check_gradients(function, draw())
    assert report.findings == ()
    assert {verdict.status for verdict in report.verdicts} == {"pass"}
    assert report.summary["covered"][0] == (
        f"{function.__name__} computes in float32, though it is given float64: its gradients were "
        "checked as float32 ones are, to as many digits"
    )


def test_an_error_of_three_percent_is_found():
    (finding,) = check_gradients(WrongSquare, draw()).findings
    assert finding.code == "GCS601"
    assert "is 1.03 times the numeric one" in finding.message


@pytest.mark.parametrize(
    "function", [torch.sin, torch.relu, lambda x: 0.0 * x, lambda x: x.detach().round() + 0 * x]
)
def test_others_are_checked_in_float64(function):
    report = check_gradients(function, draw(), variations=())
    assert report.summary["probes"] == 2
