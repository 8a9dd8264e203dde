"""Correct Functions made of matrix products."""

from __future__ import annotations

import math

import torch
from torch.autograd import Function

from tests.verification.mutants.originals import original


@original(lambda draw: (draw(4, 3), draw(5, 3), draw(5)))
class Linear(Function):
    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        return x @ weight.t() + bias

    @staticmethod
    def backward(ctx, grad_output):
        x, weight = ctx.saved_tensors
        grad_x = grad_weight = grad_bias = None
        if ctx.needs_input_grad[0]:
            grad_x = grad_output @ weight
        if ctx.needs_input_grad[1]:
            grad_weight = grad_output.t() @ x
        if ctx.needs_input_grad[2]:
            grad_bias = grad_output.sum(0)
        return grad_x, grad_weight, grad_bias


@original(lambda draw: (draw(4, 4), draw(4, 4)))
class SquareMatmul(Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a @ b

    @staticmethod
    def backward(ctx, grad_output):
        a, b = ctx.saved_tensors
        return grad_output @ b.t(), a.t() @ grad_output


@original(lambda draw: (draw(3, 2, 4), draw(4, 5)))
class BroadcastMatmul(Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx, grad_output):
        x, w = ctx.saved_tensors
        grad_x = grad_output @ w.mT
        grad_w = (x.mT @ grad_output).sum(dim=0)
        return grad_x, grad_w


@original(lambda draw: (draw(3, 4), draw(5, 4), draw(5, 2)))
class Attention(Function):
    @staticmethod
    def forward(ctx, q, k, v):
        ctx.save_for_backward(q, k, v)
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        return scores.softmax(dim=-1) @ v

    @staticmethod
    def backward(ctx, grad_output):
        q, k, v = ctx.saved_tensors
        scale = 1.0 / math.sqrt(q.shape[-1])
        p = (q @ k.mT * scale).softmax(dim=-1)
        grad_v = p.mT @ grad_output
        grad_p = grad_output @ v.mT
        grad_s = p * (grad_p - (grad_p * p).sum(dim=-1, keepdim=True))
        grad_q = grad_s @ k * scale
        grad_k = grad_s.mT @ q * scale
        return grad_q, grad_k, grad_v


@original(lambda draw: (draw(2, 3, 3), draw(2, 3, 3), draw(2, 3, 3)))
class CausalAttention(Function):
    @staticmethod
    def forward(ctx, q, k, v):
        ctx.save_for_backward(q, k, v)
        hidden = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).triu(1)
        return (q @ k.mT).masked_fill(hidden, float("-inf")).softmax(dim=-1) @ v

    @staticmethod
    def backward(ctx, grad_output):
        q, k, v = ctx.saved_tensors
        hidden = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).triu(1)
        p = (q @ k.mT).masked_fill(hidden, float("-inf")).softmax(dim=-1)
        grad_p = grad_output @ v.mT
        grad_s = p * (grad_p - (grad_p * p).sum(dim=-1, keepdim=True))
        return grad_s @ k, grad_s.mT @ q, p.mT @ grad_output


@original(lambda draw: (draw(2, 3, 7), draw(4, 3, 3)))
class Conv1d(Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        columns = x.unfold(2, weight.shape[2], 1)
        return torch.einsum("nclk,ock->nol", columns, weight)

    @staticmethod
    def backward(ctx, grad_output):
        x, weight = ctx.saved_tensors
        size = weight.shape[2]
        columns = x.unfold(2, size, 1)
        grad_weight = torch.einsum("nol,nclk->ock", grad_output, columns)
        padded = torch.nn.functional.pad(grad_output, (size - 1, size - 1)).unfold(2, size, 1)
        grad_x = torch.einsum("nolk,ock->ncl", padded, weight.flip(2))
        return grad_x, grad_weight


@original(lambda draw: (draw(3, 4), draw(3, 4, 2), draw(2)))
class Bilinear(Function):
    @staticmethod
    def forward(ctx, x, m, y):
        ctx.save_for_backward(x, m, y)
        return torch.einsum("bi,bij,j->b", x, m, y)

    @staticmethod
    def backward(ctx, grad_output):
        x, m, y = ctx.saved_tensors
        grad_x = torch.einsum("b,bij,j->bi", grad_output, m, y)
        grad_m = torch.einsum("b,bi,j->bij", grad_output, x, y)
        grad_y = torch.einsum("b,bi,bij->j", grad_output, x, m)
        return grad_x, grad_m, grad_y


@original(lambda draw: (draw.well_conditioned(3),))
class Inverse(Function):
    @staticmethod
    def forward(ctx, a):
        y = torch.linalg.inv(a)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        (y,) = ctx.saved_tensors
        return -(y.mT @ grad_output @ y.mT)


@original(lambda draw: (draw.well_conditioned(3),))
class LogDet(Function):
    @staticmethod
    def forward(ctx, a):
        ctx.save_for_backward(a)
        return torch.linalg.slogdet(a)[1]

    @staticmethod
    def backward(ctx, grad_output):
        (a,) = ctx.saved_tensors
        return grad_output * torch.linalg.inv(a).mT


@original(lambda draw: (draw(3), draw(4)))
class Outer(Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a.unsqueeze(1) * b.unsqueeze(0)

    @staticmethod
    def backward(ctx, grad_output):
        a, b = ctx.saved_tensors
        return (grad_output * b).sum(dim=1), (grad_output * a.unsqueeze(1)).sum(dim=0)


@original(lambda draw: (draw(4, 3), draw(5, 3)))
class SquaredDistances(Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return (a.unsqueeze(1) - b.unsqueeze(0)).pow(2).sum(-1)

    @staticmethod
    def backward(ctx, grad_output):
        a, b = ctx.saved_tensors
        g = 2 * grad_output.unsqueeze(-1) * (a.unsqueeze(1) - b.unsqueeze(0))
        return g.sum(dim=1), -g.sum(dim=0)
