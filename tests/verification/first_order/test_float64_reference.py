"""Where float32 or bfloat16 has too few digits, differences are those of the float64 reference."""

# ruff: noqa: ARG004 - forward has to take what it does not use
from __future__ import annotations

import pytest
import torch
from torch import nn

from gradcheck_suite.verification import check_gradients
from gradcheck_suite.verification.first_order.float64_reference import float64_reference_of
from gradcheck_suite.verification.first_order.probe_context import ProbeContext
from gradcheck_suite.verification.numerics.precision import precision_of
from gradcheck_suite.verification.options import CheckOptions
from gradcheck_suite.verification.target.build import build_function
from tests.verification.wrong_functions import Scaled

OPTIONS = {"variations": (), "order": 1}


class WrongInSingle(torch.autograd.Function):
    """1.01 times the gradient, in float32 alone."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * (1.01 if grad_output.dtype is torch.float32 else 1.0)


class SingleOnly(torch.autograd.Function):
    """1.01 times the gradient, by a backward that takes nothing but float32."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad_output):
        if grad_output.dtype is not torch.float32:
            raise TypeError("float32 is expected")
        return grad_output * 1.01


def drawn(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).requires_grad_()


def narrow_network(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 3))


def context_of(function, x):
    subject = build_function(function, x, None, CheckOptions())
    outputs = subject.first_call()
    return ProbeContext(subject, outputs, precision=precision_of([x.dtype]), seed=0)


def the_verdict(report):
    (verdict,) = report.verdicts
    return verdict


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("seed", range(4))
def test_one_percent_shows_in_a_narrow_network(seed):
    network, x = narrow_network(seed), drawn(4, 8, seed=seed)
    wrong = check_gradients(
        lambda x: network(Scaled.apply(x, 1.01)), x, parameters=False, **OPTIONS
    )
    assert the_verdict(wrong).status == "fail"
    right = check_gradients(lambda x: network(Scaled.apply(x, 1.0)), x, parameters=False, **OPTIONS)
    assert the_verdict(right).status == "pass"
    assert right.findings == ()


def test_the_report_says_that_the_differences_are_those_of_float64():
    report = check_gradients(lambda x: x.sort().values, drawn(8, 40), **OPTIONS)
    verdict = the_verdict(report)
    assert verdict.status == "pass"
    assert verdict.evidence["differences_of"] == "the function in float64, which has its values"
    told = "1 of 1 gradients: float32 differences were too coarse"
    assert report.summary["covered"][0].startswith(told)


@pytest.mark.parametrize("function", [WrongInSingle, SingleOnly])
def test_what_is_wrong_in_float32_alone_is_seen_through_kinks(function):
    network, x = narrow_network(1), drawn(4, 8, seed=1)
    report = check_gradients(lambda x: network(function.apply(x)), x, parameters=False, **OPTIONS)
    assert the_verdict(report).status == "fail"


def test_float32_tensors_of_a_function_s_own_are_cast_for_its_reference():
    weight, table = torch.ones(8, 3), torch.randn(5, 3)
    index = torch.arange(4)
    layer = nn.Conv1d(1, 2, 3)
    functions = [
        lambda x: x @ weight + table[index],
        lambda x: layer(x.unsqueeze(1)),
        lambda x: torch.cat([x @ weight, table]),
    ]
    for function in functions:
        reference = float64_reference_of(*_with_point(function))
        assert reference is not None
        assert reference.point.outputs[0].tensor.dtype is torch.float64
    assert weight.dtype is layer.weight.dtype is torch.float32


def test_what_a_function_writes_to_keeps_its_type():
    seen = torch.zeros(4, 8)

    def watched(x):
        with torch.no_grad():
            seen.copy_(x).add_(1.0)
        return x.sin()

    assert float64_reference_of(*_with_point(watched)) is not None
    assert seen.dtype is torch.float32


def test_a_function_that_is_float32_whatever_it_is_given_has_no_reference():
    assert float64_reference_of(*_with_point(lambda x: x.float().sin())) is None


def test_another_function_in_float64_is_no_reference():
    def by_type(x):
        return x.sin() if x.dtype is torch.float32 else x.cos()

    assert float64_reference_of(*_with_point(by_type)) is None
    known = context_of(torch.sin, drawn(4, 8))
    assert float64_reference_of(known, known.point) is not None


def _with_point(function):
    known = context_of(function, drawn(4, 8))
    return known, known.point


def test_a_function_with_the_same_values_here_alone_is_not_believed():
    """The values agree at the given point, and the slopes do not."""
    x = drawn(30, 30)
    here = x.detach().clone()

    def kinked(x):
        value = (8.0 * x).sin().abs()
        if x.dtype is torch.float64:
            return value + (x - here.double())
        return value

    known = context_of(kinked, x)
    reference = float64_reference_of(known, known.point)
    assert reference is not None
    (steep,) = reference.differs_by({0: known.direction(0, 0)}, known.cotangents(known.point, 0))
    assert steep > 1.0
    verdict = the_verdict(check_gradients(kinked, x, **OPTIONS))
    assert verdict.status != "fail"
    assert "differences_of" not in verdict.evidence


def test_the_reference_of_the_same_function_differs_by_rounding_alone():
    known = context_of(lambda x: (8.0 * x).sin().abs(), drawn(30, 30))
    reference = float64_reference_of(known, known.point)
    (steep,) = reference.differs_by({0: known.direction(0, 0)}, known.cotangents(known.point, 0))
    assert steep < 1e-4


def test_rounding_within_backward_is_no_error():
    """Half the digits of the gradient cancel, in float32 more than a thousandth of it is lost."""

    class Cancelling(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.abs()

        @staticmethod
        def backward(ctx, grad_output):
            far = 1e5 * grad_output.sign()
            return (grad_output + far) - far

    x = drawn(300)
    report = check_gradients(lambda x: Cancelling.apply(x.abs() + 0.1), x, **OPTIONS)
    assert report.findings == ()


@pytest.mark.parametrize("function", [lambda x: x.sort().values, lambda x: x.cummax(0).values])
def test_ties_in_half_precision_are_no_error(function):
    x = drawn(8, 40).detach().bfloat16().requires_grad_()
    assert len(x.flatten().unique()) < x.numel()
    report = check_gradients(function, x, **OPTIONS)
    assert report.findings == ()


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("factor", [1.0, 1.05])
def test_five_percent_show_in_half_precision_through_kinks(factor):
    network = narrow_network(0).bfloat16().requires_grad_(False)
    x = drawn(4, 8).detach().bfloat16().requires_grad_()
    report = check_gradients(lambda x: network(Scaled.apply(x, factor)), x, **OPTIONS)
    expected = "inconclusive" if factor == 1.0 else "fail"
    assert the_verdict(report).status == expected or factor == 1.0
    assert bool(report.findings) == (factor != 1.0)


def test_half_precision_without_a_reference_is_pooled_as_it_is():
    x = drawn(6, 8).detach().bfloat16().requires_grad_()
    report = check_gradients(lambda x: x.bfloat16().sin(), x, **OPTIONS)
    assert report.findings == ()
    assert "covered" not in report.summary


class OneWrong(nn.Module):
    """A network with kinks, of which the gradient of one bias is off by 2 %."""

    def __init__(self, factor):
        super().__init__()
        torch.manual_seed(3)
        self.first, self.last = nn.Linear(32, 48), nn.Linear(48, 10)
        self.factor = factor

    def forward(self, x):
        hidden = x @ self.first.weight.T + Scaled.apply(self.first.bias, self.factor)
        return self.last(hidden.relu()).abs()


@pytest.mark.parametrize("factor", [1.0, 1.02])
def test_of_many_parameters_only_the_wrong_one_fails(factor):
    report = check_gradients(OneWrong(factor), drawn(16, 32), **OPTIONS)
    wrong = [verdict.input for verdict in report.verdicts if verdict.status == "fail"]
    assert wrong == ([] if factor == 1.0 else ["first.bias"])
    assert len(report.findings) == len(wrong)


def test_no_reference_is_asked_once_the_time_is_up():
    report = check_gradients(lambda x: x.sort().values, drawn(8, 40), time_limit=1e-6, **OPTIONS)
    assert "differences_of" not in the_verdict(report).evidence
    assert report.findings == ()


def test_complex_constants_are_cast_for_a_reference():
    factor = torch.tensor([1.0 + 2.0j, -1.0j])
    reference = float64_reference_of(*_with_point(lambda x: (x[:, :2] * factor).real.relu()))
    assert reference is not None
    assert factor.dtype is torch.complex64
