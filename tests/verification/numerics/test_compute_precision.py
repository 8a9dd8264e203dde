"""Functions that compute with fewer digits than they are given are checked to as many."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

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


class RootMeanSquare(nn.Module):
    """The normalisation of T5: the variance alone is computed in float32."""

    exponent = -0.5

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, 8))

    def forward(self, x):
        variance = self.variance(x).pow(2).mean(-1, keepdim=True)
        return self.weight * x * (variance + 1e-6) ** self.exponent

    def variance(self, x):
        return x.float()


class DetachedMeanSquare(RootMeanSquare):
    def variance(self, x):
        return x.float().detach()


class Router(nn.Module):
    """A mixture of experts whose gates are a softmax in float32."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(8, 4)

    def forward(self, x):
        gates = torch.softmax(self.gate(x), -1, dtype=torch.float32).to(x.dtype)
        experts = torch.stack([x * (number + 1) for number in range(4)], -2)
        return (gates.unsqueeze(-1) * experts).sum(-2)


class Normalised(torch.autograd.Function):
    """As ``RootMeanSquare``, in one node, whose inside no graph shows."""

    factor = 1.0

    @staticmethod
    def forward(ctx, x):
        scale = torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6).to(x.dtype)
        ctx.save_for_backward(x, scale)
        return x * scale

    @classmethod
    def pulled(cls, ctx, grad):
        x, scale = ctx.saved_tensors
        return grad * scale - cls.factor * x * scale**3 * (grad * x).mean(-1, keepdim=True)

    @staticmethod
    def backward(ctx, grad):
        return Normalised.pulled(ctx, grad)


class WronglyNormalised(Normalised):
    factor = 1.2

    @staticmethod
    def backward(ctx, grad):
        return WronglyNormalised.pulled(ctx, grad)


class Mixed(nn.Module):
    """Computes under autocast, and gives float32."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = self.second(self.hidden(x))
        return y.float() + x[..., :4]

    def hidden(self, x):
        return torch.tanh(self.first(x))


class MixedAndCut(Mixed):
    def hidden(self, x):
        return torch.tanh(self.first(x)).detach() * self.first(x)


def rows(dtype):
    generator = torch.Generator().manual_seed(5)
    return torch.randn(2, 5, 8, dtype=dtype, generator=generator, requires_grad=True)


@pytest.mark.parametrize("make", [RootMeanSquare, Router, lambda: Normalised.apply])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_part_in_float32_is_no_error(make, dtype):
    function = make()
    if isinstance(function, nn.Module):
        function = function.to(dtype)
    report = check_gradients(function, rows(dtype), order=1)
    assert report.findings == ()
    assert {verdict.status for verdict in report.verdicts} == {"pass"}
    in_part = any("in float32 in part" in line for line in report.summary["covered"])
    assert in_part == (dtype is torch.float64)


@pytest.mark.parametrize("function", [DetachedMeanSquare().double(), WronglyNormalised.apply])
def test_an_error_in_that_part_is_found(function):
    report = check_gradients(function, rows(torch.float64), order=1)
    assert [finding.code for finding in report.findings] == ["GCS601"]


def test_a_part_in_half_precision_is_no_error():
    report = check_gradients(Mixed(), rows(torch.float32))
    assert report.findings == ()
    assert {verdict.status for verdict in report.verdicts} == {"pass"}
    assert "Mixed computes in bfloat16 in part" in report.summary["covered"][0]


@pytest.mark.slow
def test_a_large_error_under_autocast_is_found():
    report = check_gradients(MixedAndCut(), rows(torch.float32))
    assert {finding.code for finding in report.findings} == {"GCS601"}


def test_constants_in_float32_leave_a_function_its_digits():
    angles = torch.arange(5)[:, None] * torch.tensor([1.0, 0.1, 0.01, 0.001])

    def rotated(x):
        first, second = x.chunk(2, -1)
        return torch.cat([first * angles.cos() - second * angles.sin(), first * second], -1)

    report = check_gradients(rotated, rows(torch.float64))
    assert report.findings == ()
    assert not any("in part" in line for line in report.summary["covered"])
