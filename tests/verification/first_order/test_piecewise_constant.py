"""A function that rounds has a slope from afar and a gradient of zero, which is right."""

from __future__ import annotations

import pytest
import torch

from gradcheck_suite.verification import check_gradients

OPTIONS = {"variations": (), "order": 1}


class Lost(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, function):
        ctx.set_materialize_grads(True)
        return function(x)

    @staticmethod
    def backward(ctx, grad_output):
        return torch.zeros_like(grad_output), *([None] * len(ctx.needs_input_grad[1:]))


def inputs(dtype):
    torch.manual_seed(5)
    return torch.randn(60, dtype=dtype).requires_grad_()


@pytest.mark.parametrize("decimals", [2, 3, 4, 5])
@pytest.mark.parametrize("values", [torch.ones(5), torch.rand(200)], ids=["ones", "many"])
def test_rounding_in_float32_is_no_error(decimals, values):
    report = check_gradients(
        lambda x: torch.round(x, decimals=decimals), values.clone().requires_grad_(), **OPTIONS
    )
    assert report.findings == ()


def test_steps_that_smooth_out_from_afar_are_named():
    x = torch.ones(5).requires_grad_()
    report = check_gradients(lambda x: torch.round(x, decimals=3), x, **OPTIONS)
    (verdict,) = report.verdicts
    assert verdict.status == "inconclusive"
    assert "made of steps" in verdict.reason


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "function",
    [torch.sin, lambda x: 1.0 + 1e-2 * x, torch.relu, lambda x: x * 1e-20],
    ids=["sin", "faint", "relu", "tiny"],
)
def test_a_lost_gradient_stays_an_error(dtype, function):
    report = check_gradients(lambda x: Lost.apply(x, function), inputs(dtype), **OPTIONS)
    assert [verdict.status for verdict in report.verdicts] == ["fail"]


def test_rounding_of_large_numbers_on_the_way_hides_no_error_in_float64():
    def cancels(x):
        return Lost.apply(x, lambda x: (x + 100.0) - 100.0)

    report = check_gradients(cancels, inputs(torch.float64), **OPTIONS)
    assert [verdict.status for verdict in report.verdicts] == ["fail"]
