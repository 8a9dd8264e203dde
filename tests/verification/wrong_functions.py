"""A bank of Functions whose backward is wrong, each beside its correct twin."""

# ruff: noqa: ARG004 - forward and backward have to take what they do not use
from __future__ import annotations

import torch
from torch.autograd import Function

_BOUND = 5.0


class Scaled(Function):
    """Passes on its input; the gradient is multiplied by a factor, or None where that is None."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x.clone()

    @staticmethod
    def backward(ctx, grad_output):
        return None if ctx.factor is None else grad_output * ctx.factor, None


class SignFlipped(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return -grad_output * x.cos()


class FactorTwo(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**2

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * x


class MissingTerm(Function):
    """x * sigmoid(x) without the second half of the product rule."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x.sigmoid()

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * x.sigmoid()


class Transposed(Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx, grad_output):
        x, weight = ctx.saved_tensors
        return grad_output @ weight, x.t() @ grad_output


class MeanForSum(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.shape = x.shape
        return x.sum()

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output.expand(ctx.shape) / torch.Size(ctx.shape).numel()


class OneElement(Function):
    """Right but for one element among all."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        grad = (grad_output * x.exp()).contiguous()
        grad.view(-1)[grad.numel() // 3] *= 2
        return grad


class WrongForNegative(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.where(x > 0, x, 0.1 * x)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output.clone()


class Zero(Function):
    @staticmethod
    def forward(ctx, x):
        return 1e-6 * x.sin()

    @staticmethod
    def backward(ctx, grad_output):
        return torch.zeros_like(grad_output)


class Nothing(Function):
    @staticmethod
    def forward(ctx, x, slope):
        ctx.save_for_backward(x, slope)
        return x * slope

    @staticmethod
    def backward(ctx, grad_output):
        _, slope = ctx.saved_tensors
        return grad_output * slope, None


class Percent(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.tanh()

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * (1 - x.tanh() ** 2) * 1.01


class HalfPerMille(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.tanh()

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * (1 - x.tanh() ** 2) * 1.0005


class Clamped(Function):
    @staticmethod
    def forward(ctx, x):
        return 3 * x

    @staticmethod
    def backward(ctx, grad_output):
        return (3 * grad_output).clamp(-_BOUND, _BOUND)


class IgnoresGradient(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**2

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return 2 * x


class WritesIntoGradient(Function):
    @staticmethod
    def forward(ctx, x):
        return 3 * x

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output.mul_(3)


class Sticky(Function):
    """Its backward counts its calls."""

    calls = 0

    @staticmethod
    def forward(ctx, x):
        return 3 * x

    @staticmethod
    def backward(ctx, grad_output):
        Sticky.calls += 1
        return grad_output * (3 + Sticky.calls)


class RightSwish(Function):
    """The correct twin of MissingTerm."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x.sigmoid()

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        s = x.sigmoid()
        return grad_output * (s + x * s * (1 - s))


class RightProduct(Function):
    """The correct twin of Nothing and Transposed."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx, grad_output):
        x, weight = ctx.saved_tensors
        return grad_output @ weight.t(), x.t() @ grad_output


def one_of_two_detached(x):
    """Return two outputs, of which autograd sees one."""
    return x.sin(), x.detach().cos()


def cut_in_the_middle(x):
    """Lose one factor's gradient."""
    return x * x.detach().exp()


class NotANumber(Function):
    """Divides by zero in backward, at entries that forward does not use."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.where(x > 0, x.clamp(min=0) ** 1.5, 0.0)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        positive = x.clamp(min=0)
        return grad_output * 1.5 * positive**2 / positive**1.5
