"""Iterations that end when a step is small enough: their gradient is that of the limit."""

from __future__ import annotations

import pytest
import torch

from gradcheck_suite.severity import Severity
from gradcheck_suite.verification import check_gradients


def settled(step, start, tolerance):
    for _ in range(500):
        moved = step(start)
        if float((moved - start).norm()) < tolerance:
            break
        start = moved
    return start


class FixedPoint(torch.autograd.Function):
    """z = tanh(z W + x), with the gradient of the implicit function theorem."""

    @staticmethod
    def forward(ctx, weight, x, tolerance):
        z = settled(lambda z: torch.tanh(z @ weight + x), torch.zeros_like(x), tolerance)
        ctx.save_for_backward(weight, z)
        return z

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_output):
        weight, z = ctx.saved_tensors
        slope = 1 - z**2
        adjoint = settled(lambda v: grad_output + (v * slope) @ weight.T, grad_output, 1e-12)
        return z.T @ (adjoint * slope), adjoint * slope, None


class FirstStepOnly(FixedPoint):
    """Takes the gradient of one step for that of all."""

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_output):
        _, z = ctx.saved_tensors
        adjoint = grad_output * (1 - z**2)
        return z.T @ adjoint, adjoint, None


class Approximate(torch.autograd.Function):
    """Off by as little as an iteration, and makes the same operations everywhere."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.nn.functional.gelu(x)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_output):
        with torch.enable_grad():
            x = ctx.saved_tensors[0].detach().requires_grad_()
            gelu = torch.nn.functional.gelu(x, approximate="tanh")
        return torch.autograd.grad(gelu, x, grad_output)


@pytest.fixture
def inputs():
    generator = torch.Generator().manual_seed(0)
    weight = 0.1 * torch.randn(5, 5, dtype=torch.float64, generator=generator)
    x = torch.randn(3, 5, dtype=torch.float64, generator=generator)
    return weight.requires_grad_(), x.requires_grad_()


def solver(function, tolerance):
    return lambda weight, x: function.apply(weight, x, tolerance)


def test_an_iteration_to_the_end_is_right(inputs):
    report = check_gradients(solver(FixedPoint, 1e-13), inputs)
    assert not report.findings
    assert all(verdict.status == "pass" for verdict in report.verdicts)


@pytest.mark.parametrize("tolerance", [1e-6, 1e-3])
def test_an_iteration_that_ends_early_is_a_warning(inputs, tolerance):
    report = check_gradients(solver(FixedPoint, tolerance), inputs)
    assert report.ok
    assert {finding.severity for finding in report.findings} == {Severity.WARNING}
    for finding in report.findings:
        assert "makes more or fewer operations for other values: it iterates" in finding.message
        assert "tighter tolerance or more iterations" in finding.hint


@pytest.mark.parametrize("tolerance", [1e-13, 1e-6, 1e-3])
def test_an_iteration_with_another_gradient_is_an_error(inputs, tolerance):
    report = check_gradients(solver(FirstStepOnly, tolerance), inputs)
    assert not report.ok
    assert all("it iterates" not in finding.message for finding in report.findings)


def test_a_function_without_iterations_that_is_a_little_off_is_an_error():
    x = torch.linspace(-2, 2, 24, dtype=torch.float64).requires_grad_()
    (finding,) = check_gradients(Approximate, x).findings
    assert finding.severity is Severity.ERROR
    assert "it iterates" not in finding.message
