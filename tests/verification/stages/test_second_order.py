"""Order 2: by itself where custom Functions are involved, by request elsewhere."""

# ruff: noqa: ARG004 - forward and backward have to take what they do not use
from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.autograd.function import once_differentiable

from gradcheck_suite.severity import Severity
from gradcheck_suite.verification import check_gradients
from gradcheck_suite.verification.first_order.probe_context import ProbeContext
from gradcheck_suite.verification.stages import second_order


class Right(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x.sin() * y

    @staticmethod
    def backward(ctx, grad_output):
        x, y = ctx.saved_tensors
        return grad_output * x.cos() * y, grad_output * x.sin()


class Linear(torch.autograd.Function):
    """Its gradient does not depend on its input: the second derivative is rightly zero."""

    @staticmethod
    def forward(ctx, x):
        return 3 * x

    @staticmethod
    def backward(ctx, grad_output):
        return 3 * grad_output


class SavesIntermediate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        slope = x.cos()
        ctx.save_for_backward(slope)
        return x.sin()

    @staticmethod
    def backward(ctx, grad_output):
        (slope,) = ctx.saved_tensors
        return grad_output * slope


class HalfOfIt(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * 3 * x * x.detach()


class Numpy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return torch.from_numpy(grad_output.detach().numpy() * np.exp(x.detach().numpy()))


class Declared(Numpy):
    backward = staticmethod(once_differentiable(Numpy.backward))


class Raises(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return torch.from_numpy(grad_output.numpy() * np.exp(x.numpy()))


def second(report):
    """Return the findings of order 2 and the verdicts of order 2."""
    return (
        [finding for finding in report.findings if finding.code == "GCS602"],
        [verdict for verdict in report.verdicts if verdict.evidence.get("order") == 2],
    )


def check(function, *inputs, **options):
    return check_gradients(function, inputs, variations=(), **options)


@pytest.mark.parametrize(
    ("function", "count"), [(Right, 2), (Linear, 1), (lambda x: Right.apply(x, x).sum(), 1)]
)
def test_right_functions_pass(function, count, randn):
    report = check(function, *(randn(3, 4) for _ in range(count)))
    findings, verdicts = second(report)
    assert findings == []
    assert len(verdicts) == count * (count + 1)
    assert {verdict.status for verdict in verdicts} == {"pass"}
    assert "order 2" in report.summary["covered"]


def test_a_saved_intermediate_is_wrong_only_at_order_2(randn):
    report = check(SavesIntermediate, randn(5))
    (finding,), verdicts = second(report)
    assert finding.severity is Severity.WARNING
    assert "the gradient of x is right, but its own gradient with respect to `x` is" in (
        finding.message
    )
    assert "made by SavesIntermediate.backward" in finding.message
    assert finding.location.function == "SavesIntermediate.forward"
    line = Path(__file__).read_text(encoding="utf-8").splitlines()[finding.location.line - 1]
    assert "ctx.save_for_backward(" in line
    assert "an intermediate saved in forward" in finding.hint
    assert {verdict.input: verdict.status for verdict in verdicts} == {
        "x": "fail",
        "cotangent of output": "pass",
    }


def test_what_is_lost_is_told_by_its_share(randn):
    (finding,), _ = second(check(HalfOfIt, randn(5)))
    assert finding.severity is Severity.WARNING
    assert "is 0.5 times the numeric one" in finding.message
    assert "@once_differentiable" in finding.hint


def test_what_was_asked_for_has_to_be_right(randn):
    (finding,), _ = second(check(HalfOfIt, randn(5), order=2))
    assert finding.severity is Severity.ERROR


class CubeSlope(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, g):
        ctx.save_for_backward(x, g)
        return 3 * x**2 * g

    @staticmethod
    def backward(ctx, cotangent):
        x, g = ctx.saved_tensors
        return 5 * x * g * cotangent, 3 * x**2 * cotangent  # 6 is right


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, cotangent):
        return CubeSlope.apply(*ctx.saved_tensors, cotangent)


def test_a_second_derivative_that_somebody_wrote_has_to_be_right(randn):
    (finding,), _ = second(check(Cube, randn(5)))
    assert finding.severity is Severity.ERROR


@pytest.mark.parametrize("function", [Numpy, Raises])
def test_merely_not_twice_differentiable_is_a_warning_unless_asked_for(function, randn):
    (finding,), _ = second(check(function, randn(5)))
    assert finding.severity is Severity.WARNING
    assert "@once_differentiable" in finding.hint
    (finding,), _ = second(check(function, randn(5), order=2))
    assert finding.severity is Severity.ERROR


def test_once_differentiable_is_silent_and_not_covered(randn):
    report = check(Declared, randn(5))
    assert second(report) == ([], [])
    assert report.ok
    assert "order 2: backward is marked once_differentiable" in report.not_covered
    both = check(lambda x, y: Declared.apply(x) + Right.apply(y, y), randn(3), randn(3))
    assert {verdict.output for verdict in second(both)[1]} == {"gradient of y"}


def test_plain_operations_are_checked_at_order_2_on_request_only(randn):
    assert second(check(torch.sin, randn(5))) == ([], [])
    findings, verdicts = second(check(torch.sin, randn(5), order=2))
    assert findings == []
    assert [verdict.status for verdict in verdicts] == ["pass", "pass"]
    assert second(check(SavesIntermediate, randn(5), order=1)) == ([], [])


def test_modules_complex_inputs_and_several_outputs(randn):
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh()).double()
    _, verdicts = second(check(module, randn(2, 3), order=2))
    assert {verdict.status for verdict in verdicts} == {"pass"}
    assert {verdict.output for verdict in verdicts} == {
        "gradient of input",
        "gradient of 0.weight",
        "gradient of 0.bias",
    }
    z = torch.tensor([1 + 2j, 0.5 - 1j], dtype=torch.complex128, requires_grad=True)
    _, verdicts = second(check(lambda z: (z * z, {"r": z.abs(), "n": z.angle() > 0}), z, order=2))
    assert {verdict.status for verdict in verdicts} == {"pass"}


def test_order_2_waits_for_order_1(wrong, randn):
    report = check(wrong.Percent, randn(4))
    assert second(report) == ([], [])
    assert "order 2: the gradients themselves are wrong" in report.not_covered


def test_a_time_limit_that_is_over_leaves_later_stages_out(randn):
    report = check(Right, randn(3), randn(3), time_limit=1e-9)
    assert second(report) == ([], [])
    assert any("the time limit of 1e-09 s was reached" in line for line in report.not_covered)
    assert {verdict.status for verdict in report.verdicts} == {"pass"}


def test_the_time_limit_is_that_of_its_measurement_too(randn, monkeypatch):
    given = []

    def measuring(*arguments, deadline=None, **options):
        given.append(deadline)
        return ProbeContext(*arguments, deadline=deadline, **options)

    monkeypatch.setattr(second_order, "ProbeContext", measuring)
    before = time.monotonic()
    assert second(check(Right, randn(3), randn(3), time_limit=1000.0))
    (deadline,) = given
    assert 0 < deadline.moment - before - 1000.0 < 100.0


def test_rounding_noise_has_no_second_derivative():
    torch.manual_seed(0)
    x = torch.randn(6, 1, dtype=torch.float64).requires_grad_()
    weight = torch.randn(1, dtype=torch.float64).requires_grad_()
    # Over one element x - mean is zero but for its last bit, which depends on how it is computed.
    report = check_gradients(
        lambda x, weight: torch.nn.functional.layer_norm(x, (1,), weight, eps=1e-9),
        (x, weight),
        order=2,
        variations=(),
    )
    assert report.findings == ()


def test_gradients_without_elements_have_no_second_order(randn):
    report = check_gradients(
        lambda x: torch.nn.functional.pad(x, (1, 1)), randn(0), order=2, variations=()
    )
    assert report.findings == ()
    assert "order 2: there is no gradient beyond rounding" in report.not_covered


def test_what_rounding_leaves_of_a_saturated_softmax_has_no_second_order(randn):
    x = (4000.0 * torch.arange(12.0, dtype=torch.float64).view(3, 4).sin() / 100).requires_grad_()
    value = randn(4, 5)
    report = check_gradients(
        lambda x, value: x.softmax(1) @ value, (x, value), order=2, variations=()
    )
    assert report.findings == ()
    assert {one.status for one in report.verdicts} <= {"pass", "inconclusive"}


def cube(slope):
    """Return the cube; its gradient is right, and that one's own gradient is ``slope`` times it."""

    class Slope(torch.autograd.Function):
        @staticmethod
        def forward(ctx, grad_output, x):
            ctx.save_for_backward(grad_output, x)
            return grad_output * 3.0 * x**2

        @staticmethod
        def backward(ctx, grad_grad):
            grad_output, x = ctx.saved_tensors
            return grad_grad * 3.0 * x**2, slope * grad_grad * grad_output * 6.0 * x

    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx, grad_output):
            return Slope.apply(grad_output, *ctx.saved_tensors)

    return Cube


@pytest.mark.parametrize(
    ("slope", "kind", "words"),
    [
        (-1.0, "sign", "its own gradient with respect to `x` has the wrong sign (analytic "),
        (0.5, "factor", "its own gradient with respect to `x` is 0.5 times the numeric one ("),
    ],
)
def test_the_kind_of_a_second_order_mistake_is_told(randn, slope, kind, words):
    (finding,) = check_gradients(cube(slope), randn(6), variations=()).findings
    assert finding.code == "GCS602"
    assert finding.evidence["kind"] == kind
    assert words in finding.message
    assert check_gradients(cube(1.0), randn(6), variations=()).findings == ()
