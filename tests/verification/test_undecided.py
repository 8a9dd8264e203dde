"""What can't be measured is inconclusive with its cause: never a pass, never a crash."""

# ruff: noqa: ARG004 - forward and backward have to take what they do not use
from __future__ import annotations

import itertools
import math
import random

import pytest
import torch

from gradcheck_suite.verification import check_gradients


def the_verdict(report):
    (verdict,) = report.verdicts
    return verdict


def test_noise_hides_the_gradient_and_is_named(randn):
    noise = random.SystemRandom()  # of which nobody can rewind what it draws

    def noisy(x):
        return x + torch.tensor([noise.gauss(sigma=0.1) for _ in x], dtype=x.dtype)

    report = check_gradients(noisy, randn(6))
    assert report.findings == ()
    assert the_verdict(report).status == "inconclusive"
    assert "rounding or noise" in the_verdict(report).reason
    assert "gives different outputs for the same inputs and random state" in report.not_covered[0]


def test_noise_far_below_the_gradient_does_not_matter(randn):
    noise = torch.Generator().manual_seed(0)

    def noisy(x):
        return x**2 + 1e-12 * torch.randn(x.shape, generator=noise, dtype=x.dtype)

    assert the_verdict(check_gradients(noisy, randn(6))).status == "pass"


def test_values_in_coarse_stairs_decide_nothing():
    def eighth_bits(x):
        return (x * 256).round() / 256 + (x - x.detach())

    x = torch.linspace(-1.0, 1.0, 50, dtype=torch.float64).requires_grad_()
    report = check_gradients(eighth_bits, x)
    assert report.findings == ()
    assert the_verdict(report).status == "inconclusive"
    # Those of a type are what it rounds to.
    report = check_gradients(lambda x: eighth_bits(x).bfloat16().double(), x)
    assert report.findings == ()
    assert "in bfloat16 in part" in report.summary["covered"][0]


def test_a_straight_through_estimator_never_passes(randn):
    class Round(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.round()

        @staticmethod
        def backward(ctx, grad_output):
            return grad_output

    report = check_gradients(Round, randn(3))
    assert the_verdict(report).status == "fail"
    assert "straight-through estimator" in report.findings[0].hint


def test_a_point_off_which_the_function_is_not_defined():
    def only_here(x):
        return torch.where(x == 1.0, x, torch.nan)

    verdict = the_verdict(
        check_gradients(only_here, torch.ones(3, dtype=torch.float64, requires_grad=True))
    )
    assert verdict.status == "inconclusive"
    assert "is not finite at points around the given one" in verdict.reason


def test_a_function_that_raises_off_the_point():
    def strict(x):
        if not bool((x == 1.0).all()):
            raise ValueError("x must be one")
        return x * 2

    verdict = the_verdict(
        check_gradients(strict, torch.ones(3, dtype=torch.float64, requires_grad=True))
    )
    assert verdict.status == "inconclusive"
    assert verdict.reason == "the function raises ValueError at points around the given one"


def test_a_function_whose_outputs_change_shape_off_the_point():
    def nonzero(x):
        return x[x == 1.0]

    verdict = the_verdict(
        check_gradients(nonzero, torch.ones(3, dtype=torch.float64, requires_grad=True))
    )
    assert verdict.status == "inconclusive"
    assert "changes the shape of its outputs" in verdict.reason


def test_a_domain_that_every_uniform_step_leaves_is_measured_in_proportion():
    x = torch.tensor([1e-12, 1.0, 1e4], dtype=torch.float64, requires_grad=True)
    report = check_gradients(torch.sqrt, x)
    assert report.findings == ()
    assert the_verdict(report).status == "pass"


def test_an_infinite_gradient_at_the_edge_is_no_pass():
    x = torch.tensor([0.0, 1.0], dtype=torch.float64, requires_grad=True)
    report = check_gradients(torch.sqrt, x)
    assert report.findings == ()
    assert the_verdict(report).status == "inconclusive"
    assert "the analytic gradient is not finite" in the_verdict(report).reason


def test_nan_in_the_gradient_where_the_function_is_infinitely_steep_is_no_pass():
    x = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    report = check_gradients(lambda x: x.abs().sqrt(), x)
    assert report.findings == ()
    assert the_verdict(report).status == "inconclusive"
    assert "holds NaN or Inf at the given point" in the_verdict(report).reason


def test_a_wrong_gradient_at_one_special_point_only_is_told_as_such(wrong):
    class WrongAtZero(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.sin()

        @staticmethod
        def backward(ctx, grad_output):
            (x,) = ctx.saved_tensors
            return grad_output * torch.where(x == 0, 5.0, x.cos())

    x = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    verdict = the_verdict(check_gradients(WrongAtZero, x))
    assert verdict.status == "inconclusive"
    assert "a kink or a special case exactly here" in verdict.reason


def test_infinite_outputs_are_left_out_and_the_finite_ones_checked(wrong, randn):
    def masked(x):
        return wrong.Percent.apply(x).masked_fill(torch.arange(4) == 2, -torch.inf)

    report = check_gradients(masked, randn(4), order=1)
    assert [finding.code for finding in report.findings] == ["GCS601"]
    assert report.not_covered == ("1 of 4 values of `output` is not finite and was left out",)


def test_nan_in_output_and_gradient_decides_nothing(randn):
    report = check_gradients(lambda x: torch.cat([x.sin(), x * torch.nan]), randn(4))
    assert the_verdict(report).status == "inconclusive"
    assert "neither the output nor the gradient is finite" in the_verdict(report).reason


def test_an_output_without_any_finite_value_is_not_covered(randn):
    report = check_gradients(lambda x: x / 0, randn(4))
    assert the_verdict(report).status == "not covered"
    assert the_verdict(report).reason == "has no finite value at the given point"


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_numbers_in_verdicts_are_finite_or_none(wrong, dtype):
    x = torch.tensor([0.0, 1.0, -1.0], dtype=dtype, requires_grad=True)
    functions = [torch.sqrt, torch.log, torch.reciprocal, torch.abs, wrong.NotANumber, torch.tan]
    values = itertools.chain.from_iterable(
        verdict.evidence.values()
        for function in functions
        for verdict in check_gradients(function, x).verdicts
    )
    assert all(math.isfinite(value) for value in values if isinstance(value, float))


@pytest.mark.slow
def test_float32_says_what_error_could_hide():
    torch.manual_seed(0)
    x = torch.randn(8000, requires_grad=True)
    report = check_gradients(lambda x: x.sort().values, x)
    assert report.findings == ()
    assert the_verdict(report).status == "inconclusive"


def test_rounding_level_differences_of_two_backwards_are_a_note(randn):
    calls = []

    class Jitter(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 3

        @staticmethod
        def backward(ctx, grad_output):
            calls.append(1)
            return grad_output * 3 * (1 + 2.0**-50 * (len(calls) % 2))

    report = check_gradients(Jitter, randn(5), order=1)
    assert report.ok
    assert [(finding.code, finding.severity.value) for finding in report.findings] == [
        ("GCS603", "note")
    ]
    assert the_verdict(report).status == "pass"


class Keeps(torch.nn.Module):
    """Computes with its parameter once, and keeps what it made of that."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3, dtype=torch.float64))
        self.kept = {}

    def forward(self, x):
        if "scale" not in self.kept:
            self.kept["scale"] = self.weight.exp()
        return x * self.kept["scale"]


class Clears(Keeps):
    def forward(self, x):
        self.kept.clear()
        return super().forward(x)


def test_what_only_the_first_call_computes_with_does_not_pass(randn):
    statuses = {
        verdict.input: (verdict.status, verdict.reason)
        for verdict in check_gradients(Keeps(), randn(3)).verdicts
    }
    assert statuses["x"][0] == "pass"
    assert statuses["weight"][0] == "inconclusive"
    assert "what the first made of it is kept (a cache)" in statuses["weight"][1]
    report = check_gradients(Clears(), randn(3))
    assert {verdict.status for verdict in report.verdicts} == {"pass"}
