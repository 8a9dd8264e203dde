"""Correct Functions whose mutants have a bad habit: layouts, state, types, single entries."""

# ruff: noqa: ARG004, RET504 - as people write them
from __future__ import annotations

import torch
from torch.autograd import Function

from tests.verification.mutants.originals import original


@original(lambda draw: (draw(6, 4),))
class Triple(Function):
    @staticmethod
    def forward(ctx, x):
        return 3.0 * x

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * 3.0


@original(lambda draw: (draw(6, 4),))
class Square(Function):
    calls = 0
    kept = None

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**2

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return 2 * x * grad_output


@original(lambda draw: (draw(6, 4).detach().float().requires_grad_(),))
class SinFloat32(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * x.cos()


@original(lambda draw: (draw(1000),))
class ExpOf1000(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        grad = grad_output * x.exp()
        return grad


@original(lambda draw: (draw(100, 100),))
class ExpOf10000(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        grad = grad_output * x.exp()
        return grad


@original(lambda draw: (draw(4096 + 3),))
class BlockedCube(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        grad = torch.zeros_like(x)
        for start in range(0, x.numel(), 1024):
            block = slice(start, start + 1024)
            grad[block] = 3 * x[block] ** 2 * grad_output[block]
        return grad


@original(lambda draw: (draw(5, 4),))
class SmallSine(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return 1e-6 * x.sin()

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return 1e-6 * x.cos() * grad_output


def spoil(grad: torch.Tensor, index: object, factor: float = 2.0) -> torch.Tensor:
    """Multiply some entries."""
    spoilt = grad.clone()
    spoilt[index] *= factor
    return spoilt


def as_if_contiguous(grad: torch.Tensor) -> torch.Tensor:
    """Read the memory from the first entry on, whatever the strides are."""
    strides = torch.empty(grad.shape).stride()
    last = sum((size - 1) * stride for size, stride in zip(grad.shape, strides, strict=True))
    held = grad.untyped_storage().nbytes() // grad.element_size() - grad.storage_offset()
    return grad.as_strided(grad.shape, strides) if last < held else torch.zeros_like(grad)


def remember(owner: type, x: torch.Tensor) -> torch.Tensor:
    """Keep the first tensor of this shape for ever."""
    if owner.kept is None or owner.kept.shape != x.shape:
        owner.kept = x.detach().clone()
    return owner.kept


def times_called(owner: type) -> int:
    """Count the calls."""
    owner.calls += 1
    return owner.calls
