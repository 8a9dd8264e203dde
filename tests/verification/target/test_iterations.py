"""Iterations: their gradient is that of the limit, which they may not reach."""

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


class NewtonRoot(torch.autograd.Function):
    """Solves y**3 + y = x in eight rounds, which are too few for large x."""

    @staticmethod
    def forward(ctx, x):
        y = torch.zeros_like(x)
        for _ in range(8):
            y = y - (y**3 + y - x) / (3 * y**2 + 1)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_output):
        (y,) = ctx.saved_tensors
        return grad_output / (3 * y**2 + 1)


class Jacobi(torch.autograd.Function):
    """Solves a system whose diagonal is large, in sixty rounds."""

    @staticmethod
    def forward(ctx, matrix, b):
        diagonal = matrix.diagonal()
        rest = matrix - torch.diag(diagonal)
        x = torch.zeros_like(b)
        for _ in range(60):
            x = (b - rest @ x) / diagonal
        ctx.save_for_backward(matrix, x)
        return x

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_output):
        matrix, x = ctx.saved_tensors
        adjoint = torch.linalg.solve(matrix.T, grad_output)
        return -torch.outer(adjoint, x), adjoint


class ExponentialSeries(torch.autograd.Function):
    """Adds up twenty-five terms, in place: too few for large values."""

    @staticmethod
    def forward(ctx, x):
        total, term = torch.ones_like(x), torch.ones_like(x)
        for count in range(1, 25):
            term.mul_(x).div_(count)
            total.add_(term)
        ctx.save_for_backward(x)
        return total

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * x.exp()


class ClippedRoot(NewtonRoot):
    """Settles everywhere, and is wrong for negative values."""

    @staticmethod
    def forward(ctx, x):
        y = torch.zeros_like(x)
        for _ in range(40):
            y = y - (y**3 + y - x) / (3 * y**2 + 1)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_output):
        (y,) = ctx.saved_tensors
        return grad_output / (3 * y**2 + 1) * (y > 0)


class Recurrent(torch.autograd.Function):
    """Makes the same steps over time, which settle nowhere; wrong for negative values."""

    @staticmethod
    def forward(ctx, x):
        y = total = torch.zeros_like(x)
        for time in range(10):
            y = torch.tanh(y + x * (1 + time))
            total = total + y * x
        ctx.save_for_backward(x)
        return total

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            y = total = torch.zeros_like(x)
            for time in range(10):
                y = torch.tanh(y + x * (1 + time))
                total = total + y * x
        return torch.autograd.grad(total, x, grad_output)[0] * (x > 0)


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


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("tolerance", [1e-6, 1e-3])
def test_an_iteration_that_ends_early_is_a_warning(inputs, tolerance):
    report = check_gradients(solver(FixedPoint, tolerance), inputs)
    assert report.ok
    assert {finding.severity for finding in report.findings} == {Severity.WARNING}
    for finding in report.findings:
        assert "makes more or fewer operations for other values: it iterates" in finding.message
        assert "tighter tolerance or more iterations" in finding.hint


@pytest.mark.sampled(every=3)
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


def positive(*shape):
    generator = torch.Generator().manual_seed(3)
    return torch.rand(*shape, dtype=torch.float64, generator=generator).add_(0.2).requires_grad_()


def diagonal():
    generator = torch.Generator().manual_seed(4)
    noise = 0.5 * torch.randn(6, 6, dtype=torch.float64, generator=generator)
    return (6 * torch.eye(6, dtype=torch.float64) + noise).requires_grad_()


def fixed_point(weight, x):
    """End after fifty rounds at the latest."""
    return FiftyRounds.apply(weight, x)


class FiftyRounds(FixedPoint):
    """Has a gradient of the limit, whether it was reached or not."""

    @staticmethod
    def forward(ctx, weight, x):
        z = torch.zeros_like(x)
        for _ in range(50):
            moved = torch.tanh(z @ weight + x)
            if float((moved - z).abs().max()) < 1e-10:
                break
            z = moved
        ctx.save_for_backward(weight, z)
        return z

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_output):
        weight, z = ctx.saved_tensors
        slope = 1 - z**2
        eye = torch.eye(len(weight), dtype=z.dtype)
        systems = eye - weight * slope[:, None, :]
        adjoint = torch.linalg.solve(systems, grad_output[..., None])[..., 0] * slope
        return z.T @ adjoint, adjoint


def weights():
    generator = torch.Generator().manual_seed(0)
    # Of one sign: made a few times larger, they let the iteration go to and fro.
    weight = -0.12 * torch.rand(5, 5, dtype=torch.float64, generator=generator)
    x = torch.randn(3, 5, dtype=torch.float64, generator=generator)
    return weight.requires_grad_(), x.requires_grad_()


@pytest.mark.sampled(every=5)
@pytest.mark.parametrize(
    ("function", "given"),
    [
        (fixed_point, weights()),
        (NewtonRoot.apply, (positive(7),)),
        (Jacobi.apply, (diagonal(), positive(6))),
        (ExponentialSeries.apply, (positive(7),)),
        (lambda x: (2 * NewtonRoot.apply(x)).sin().sum(), (positive(7),)),
    ],
)
def test_where_an_iteration_has_not_settled_its_gradient_is_not_covered(function, given):
    report = check_gradients(function, given, variations={"magnitudes"})
    assert report.findings == ()
    assert all(verdict.status == "pass" for verdict in report.verdicts)
    told = [line for line in report.not_covered if line.startswith("magnitudes: ")]
    assert any("an iteration in the function does not come to its end" in line for line in told)


@pytest.mark.slow
def test_one_that_settles_there_as_well_is_told_as_a_warning():
    (finding,) = check_gradients(ClippedRoot.apply, (positive(7),)).findings
    assert finding.severity is Severity.WARNING
    assert finding.location.function == "ClippedRoot.backward"
    assert "the function iterates" in finding.evidence["lowered"][0]


def test_steps_over_time_excuse_nothing():
    (finding,) = check_gradients(Recurrent.apply, (positive(7),)).findings
    assert finding.severity is Severity.ERROR
    assert finding.evidence["variation"] == "signs"
