"""Correct Functions that work entry by entry."""

from __future__ import annotations

import math

import torch
from torch.autograd import Function

from tests.verification.mutants.originals import original


@original(lambda draw: (draw(4, 5),))
class Swish(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x.sigmoid()

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        s = x.sigmoid()
        return grad_output * (s + x * s * (1 - s))


@original(lambda draw: (draw(4, 5),))
class Gelu(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
        return 0.5 * x * (1 + inner.tanh())

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        scale = math.sqrt(2 / math.pi)
        t = (scale * (x + 0.044715 * x**3)).tanh()
        slope = scale * (1 + 3 * 0.044715 * x**2)
        return grad_output * (0.5 * (1 + t) + 0.5 * x * (1 - t**2) * slope)


@original(lambda draw: (draw(7), 2.0))
class Softplus(Function):
    @staticmethod
    def forward(ctx, x, beta):
        ctx.save_for_backward(x)
        ctx.beta = beta
        return torch.log1p(torch.exp(beta * x)) / beta

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * torch.sigmoid(ctx.beta * x), None


@original(lambda draw: (draw(4, 5), 0.1))
class LeakyRelu(Function):
    @staticmethod
    def forward(ctx, x, slope):
        ctx.save_for_backward(x)
        ctx.slope = slope
        return torch.where(x > 0, x, slope * x)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return torch.where(x > 0, grad_output, ctx.slope * grad_output), None


@original(lambda draw: (draw(6, 3, scale=2.0), draw(6, 3), 1.0))
class Huber(Function):
    @staticmethod
    def forward(ctx, pred, target, delta):
        ctx.save_for_backward(pred, target)
        ctx.delta = delta
        error = pred - target
        small = 0.5 * error**2
        large = delta * (error.abs() - 0.5 * delta)
        return torch.where(error.abs() <= delta, small, large).mean()

    @staticmethod
    def backward(ctx, grad_output):
        pred, target = ctx.saved_tensors
        error = pred - target
        slope = error.clamp(-ctx.delta, ctx.delta) / error.numel()
        return grad_output * slope, -grad_output * slope, None


@original(lambda draw: (draw(4, 6, scale=2.0),))
class HardTanh(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp(-1.0, 1.0)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        inside = (x > -1.0) & (x < 1.0)
        return grad_output * inside


@original(lambda draw: (draw(4, 5),))
class Tanh(Function):
    @staticmethod
    def forward(ctx, x):
        y = x.tanh()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        (y,) = ctx.saved_tensors
        return grad_output * (1 - y * y)


@original(lambda draw: (draw.positive(8),))
class InverseSqrt(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.rsqrt()

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return -0.5 * grad_output * x.rsqrt() ** 3


@original(lambda draw: (draw(3, 8),))
class Glu(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        a, b = x.chunk(2, dim=-1)
        return a * b.sigmoid()

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        a, b = x.chunk(2, dim=-1)
        s = b.sigmoid()
        return torch.cat([grad_output * s, grad_output * a * s * (1 - s)], dim=-1)


@original(lambda draw: (draw(5, 4), 0.25))
class Dropout(Function):
    @staticmethod
    def forward(ctx, x, p):
        mask = (torch.rand_like(x) >= p).to(x.dtype) / (1 - p)
        ctx.save_for_backward(mask)
        return x * mask

    @staticmethod
    def backward(ctx, grad_output):
        (mask,) = ctx.saved_tensors
        return grad_output * mask, None


@original(lambda draw: (draw.complex(4, 3), draw.complex(4, 3)))
class ComplexMul(Function):
    @staticmethod
    def forward(ctx, z, w):
        ctx.save_for_backward(z, w)
        return z * w

    @staticmethod
    def backward(ctx, grad_output):
        z, w = ctx.saved_tensors
        return grad_output * w.conj(), grad_output * z.conj()


@original(lambda draw: (draw.complex(5),))
class ComplexExp(Function):
    @staticmethod
    def forward(ctx, z):
        ctx.save_for_backward(z)
        return (2j * z).exp()

    @staticmethod
    def backward(ctx, grad_output):
        (z,) = ctx.saved_tensors
        return grad_output * (2j * (2j * z).exp()).conj()


@original(lambda draw: (draw.complex(5),))
class SquaredModulus(Function):
    @staticmethod
    def forward(ctx, z):
        ctx.save_for_backward(z)
        return z.real**2 + z.imag**2

    @staticmethod
    def backward(ctx, grad_output):
        (z,) = ctx.saved_tensors
        return 2 * grad_output * z


@original(lambda draw: (draw(5, 3), 3.0), call=lambda apply: lambda x, k: apply(x.clone(), k))
class ScaleInPlace(Function):
    @staticmethod
    def forward(ctx, x, k):
        ctx.mark_dirty(x)
        ctx.k = k
        return x.mul_(k)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * ctx.k, None


@original(lambda draw: (draw(4, 3),))
class SinCos(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin(), x.cos()

    @staticmethod
    def backward(ctx, grad_sin, grad_cos):
        (x,) = ctx.saved_tensors
        return grad_sin * x.cos() - grad_cos * x.sin()


@original(lambda draw: (draw(3, 4), draw(4)))
class Axpy(Function):
    @staticmethod
    def forward(ctx, x, gain):
        ctx.save_for_backward(x, gain)
        return x * gain + gain

    @staticmethod
    def backward(ctx, grad_output):
        x, gain = ctx.saved_tensors
        grad_gain = (grad_output * x).sum(0) + grad_output.sum(0)
        return grad_output * gain, grad_gain
