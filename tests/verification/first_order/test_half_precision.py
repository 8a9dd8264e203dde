"""In half precision the slope over many pooled probes is compared, without a cast."""

# ruff: noqa: ARG004 - forward and backward have to take what they do not use
from __future__ import annotations

import pytest
import torch
from torch import nn

from gradcheck_suite.verification import check_gradients
from tests.verification.wrong_functions import Scaled


def drawn(*shape, dtype=torch.bfloat16):
    generator = torch.Generator().manual_seed(5)
    return torch.randn(*shape, generator=generator).to(dtype).requires_grad_()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_right_gradients_pass_and_the_limits_are_told(dtype):
    torch.manual_seed(0)
    report = check_gradients(nn.Linear(16, 8).to(dtype), drawn(8, 16, dtype=dtype))
    assert report.findings == ()
    assert [verdict.status for verdict in report.verdicts] == ["pass"] * 3
    assert report.summary["dtype"] == f"native ({str(dtype).removeprefix('torch.')})"
    assert "not of single entries" in report.not_covered[-1]


def test_what_was_asked_for_and_half_precision_cannot_show_is_told():
    report = check_gradients(torch.sin, drawn(8, 16), full=True, batched=True, forward_mode=True)
    assert report.not_covered[-1] == (
        "the whole Jacobian (full=True), forward mode, batched gradients: left out, as half "
        "precision can't resolve them; they need float32 or float64 (dtype='float64')"
    )
    assert [line.split(" by ")[0] for line in report.summary["covered"]] == [
        "kinks and curvature were taken out of the differences"
    ]


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("factor", [1.05, 0.0, -1.0, None])
def test_an_error_of_five_percent_fails(factor):
    report = check_gradients(lambda x: Scaled.apply(x, factor).sin(), drawn(8, 16))
    assert [verdict.status for verdict in report.verdicts] == ["fail"]
    assert len(report.findings) == 1


def test_curvature_is_extrapolated_away():
    report = check_gradients(lambda x: (2 * x).sin() * x.exp(), drawn(16, 16))
    assert [verdict.status for verdict in report.verdicts] == ["pass"]


def test_a_zero_gradient_of_a_constant_passes():
    report = check_gradients(lambda x, y: (x * 2, y * x.detach()), (drawn(4), drawn(4)))
    statuses = {(verdict.output, verdict.input): verdict.status for verdict in report.verdicts}
    assert statuses["output[0]", "y"] == "pass"
    assert statuses["output[1]", "x"] == "fail"


def test_an_input_that_is_cast_inside_counts_as_half():
    report = check_gradients(lambda x: x.bfloat16() ** 2, drawn(32, dtype=torch.float32))
    assert [verdict.status for verdict in report.verdicts] == ["pass"]


def test_a_function_that_raises_off_the_point_is_inconclusive():
    x = torch.ones(3, dtype=torch.bfloat16).requires_grad_()

    def only_here(x):
        if not bool((x == 1).all()):
            raise ValueError("x must be one")
        return x * 2

    (verdict,) = check_gradients(only_here, x).verdicts
    assert (verdict.status, verdict.reason) == (
        "inconclusive",
        "too few probes could be evaluated",
    )


def test_an_infinite_gradient_and_masked_values_decide_nothing():
    x = torch.tensor([0.0, 1.0, 2.0], dtype=torch.bfloat16).requires_grad_()
    (verdict,) = check_gradients(torch.sqrt, x).verdicts
    assert (verdict.status, verdict.reason) == (
        "inconclusive",
        "the analytic gradient is not finite",
    )
    x = torch.tensor([torch.inf, 1.0, 2.0], dtype=torch.bfloat16).requires_grad_()
    (verdict,) = check_gradients(lambda x: x * 3, x).verdicts
    assert verdict.status == "inconclusive"


@pytest.mark.slow
def test_how_many_entries_are_wrong_is_told_as_the_least():
    class Averaged(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, bias):
            return x + bias

        @staticmethod
        def backward(ctx, grad_output):
            return grad_output, grad_output.mean(0)

    x = drawn(8, 16, dtype=torch.float16)
    bias = drawn(16, dtype=torch.float16)
    (finding,) = check_gradients(Averaged, (x, bias)).findings
    entry = finding.evidence["entry"]
    assert not entry["counted"]
    if entry["wrong"] < 16:
        assert "; at least " in finding.message
