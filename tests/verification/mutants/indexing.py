"""Correct Functions that move entries about."""

# ruff: noqa: ARG004 - forward and backward have to take what they do not use
from __future__ import annotations

import torch
from torch.autograd import Function

from tests.verification.mutants.originals import original


@original(lambda draw: (draw(5, 3), torch.tensor([0, 2, 2, 4])))
class GatherRows(Function):
    @staticmethod
    def forward(ctx, x, index):
        ctx.save_for_backward(index)
        ctx.rows = x.shape[0]
        return x[index]

    @staticmethod
    def backward(ctx, grad_output):
        (index,) = ctx.saved_tensors
        grad = grad_output.new_zeros(ctx.rows, *grad_output.shape[1:])
        return grad.index_add(0, index, grad_output), None


@original(lambda draw: (draw(6, 2), torch.tensor([0, 1, 1, 3, 0, 1]), 4))
class ScatterAdd(Function):
    @staticmethod
    def forward(ctx, src, index, rows):
        ctx.save_for_backward(index)
        return src.new_zeros(rows, src.shape[1]).index_add(0, index, src)

    @staticmethod
    def backward(ctx, grad_output):
        (index,) = ctx.saved_tensors
        return grad_output[index], None, None


@original(lambda draw: (draw(6, 3), torch.tensor([[1, 0, 5], [2, 1, 1]]), 0))
class Embedding(Function):
    @staticmethod
    def forward(ctx, weight, ids, padding):
        ctx.save_for_backward(ids)
        ctx.rows = weight.shape[0]
        ctx.padding = padding
        return weight[ids] * (ids != padding).unsqueeze(-1)

    @staticmethod
    def backward(ctx, grad_output):
        (ids,) = ctx.saved_tensors
        grad = grad_output.new_zeros(ctx.rows, grad_output.shape[-1])
        kept = grad_output * (ids != ctx.padding).unsqueeze(-1)
        grad = grad.index_add(0, ids.reshape(-1), kept.reshape(-1, kept.shape[-1]))
        return grad, None, None


@original(lambda draw: (draw(6, 2), torch.tensor([0, 0, 1, 2, 2, 2]), 3))
class SegmentMean(Function):
    @staticmethod
    def forward(ctx, x, index, rows):
        ctx.save_for_backward(index)
        ctx.rows = rows
        count = torch.bincount(index, minlength=rows).unsqueeze(1)
        return x.new_zeros(rows, x.shape[1]).index_add(0, index, x) / count

    @staticmethod
    def backward(ctx, grad_output):
        (index,) = ctx.saved_tensors
        count = torch.bincount(index, minlength=ctx.rows).unsqueeze(1)
        return (grad_output / count)[index], None, None


@original(lambda draw: (draw(3, 5),))
class Roll(Function):
    @staticmethod
    def forward(ctx, x):
        return x.roll(1, dims=-1) * 2.0

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output.roll(-1, dims=-1) * 2.0


@original(lambda draw: (draw(2, 3, 4), draw(3, 2), draw(3, 2)))
class Rotary(Function):
    @staticmethod
    def forward(ctx, x, cos, sin):
        ctx.save_for_backward(x, cos, sin)
        even, odd = x[..., 0::2], x[..., 1::2]
        return torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1).flatten(-2)

    @staticmethod
    def backward(ctx, grad_output):
        x, cos, sin = ctx.saved_tensors
        even, odd = x[..., 0::2], x[..., 1::2]
        g_even, g_odd = grad_output[..., 0::2], grad_output[..., 1::2]
        grad_even = g_even * cos + g_odd * sin
        grad_odd = g_odd * cos - g_even * sin
        grad_x = torch.stack([grad_even, grad_odd], dim=-1).flatten(-2)
        grad_cos = (g_even * even + g_odd * odd).sum(dim=0)
        grad_sin = (g_odd * even - g_even * odd).sum(dim=0)
        return grad_x, grad_cos, grad_sin


@original(lambda draw: (draw(2, 3), 2))
class Upsample(Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x.repeat_interleave(factor, dim=1)

    @staticmethod
    def backward(ctx, grad_output):
        rows = grad_output.shape[0]
        return grad_output.reshape(rows, -1, ctx.factor).sum(dim=-1), None


@original(lambda draw: (draw(3, 6),))
class RowMax(Function):
    @staticmethod
    def forward(ctx, x):
        values, index = x.max(dim=1)
        ctx.save_for_backward(index)
        ctx.columns = x.shape[1]
        return values

    @staticmethod
    def backward(ctx, grad_output):
        (index,) = ctx.saved_tensors
        grad = grad_output.new_zeros(grad_output.shape[0], ctx.columns)
        return grad.scatter(1, index.unsqueeze(1), grad_output.unsqueeze(1))


@original(lambda draw: (draw(4, 6),))
class AveragePool(Function):
    @staticmethod
    def forward(ctx, x):
        return x.reshape(x.shape[0], -1, 2).mean(dim=-1)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output.repeat_interleave(2, dim=1) / 2


@original(lambda draw: (draw(3, 4), torch.tensor([[True, False, True, True]] * 3)))
class MaskedFill(Function):
    @staticmethod
    def forward(ctx, x, mask):
        ctx.save_for_backward(x, mask)
        return torch.where(mask, x**2, 0.0)

    @staticmethod
    def backward(ctx, grad_output):
        x, mask = ctx.saved_tensors
        return torch.where(mask, 2 * x * grad_output, 0.0), None
