"""Correct Functions that reduce or normalise over a dimension."""

# ruff: noqa: ARG004 - forward and backward have to take what they do not use
from __future__ import annotations

import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from tests.verification.mutants.originals import original


@original(lambda draw: (draw(4, 5),))
class Softmax(Function):
    @staticmethod
    def forward(ctx, x):
        y = x.softmax(dim=-1)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        (y,) = ctx.saved_tensors
        inner = (grad_output * y).sum(dim=-1, keepdim=True)
        return y * (grad_output - inner)


@original(lambda draw: (draw(4, 5),))
class LogSumExp(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.logsumexp(dim=1)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output.unsqueeze(1) * x.softmax(dim=1)


@original(lambda draw: (draw(6, 4), torch.tensor([0, 3, -100, 1, 1, -100])))
class CrossEntropy(Function):
    @staticmethod
    def forward(ctx, logits, labels):
        ctx.save_for_backward(logits, labels)
        kept = labels != -100
        chosen = logits.log_softmax(dim=1).gather(1, labels.clamp(min=0).unsqueeze(1)).squeeze(1)
        return -(chosen * kept).sum() / kept.sum()

    @staticmethod
    def backward(ctx, grad_output):
        logits, labels = ctx.saved_tensors
        kept = labels != -100
        one_hot = torch.zeros_like(logits)
        one_hot = one_hot.scatter(1, labels.clamp(min=0).unsqueeze(1), 1.0)
        grad = (logits.softmax(dim=1) - one_hot) * kept.unsqueeze(1) / kept.sum()
        return grad_output * grad, None


@original(lambda draw: (draw(4, 6), draw(6), draw(6)))
class LayerNorm(Function):
    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        mean = x.mean(dim=-1, keepdim=True)
        rstd = (x.var(dim=-1, keepdim=True, unbiased=False) + 1e-5).rsqrt()
        return (x - mean) * rstd * weight + bias

    @staticmethod
    def backward(ctx, grad_output):
        x, weight = ctx.saved_tensors
        mean = x.mean(dim=-1, keepdim=True)
        rstd = (x.var(dim=-1, keepdim=True, unbiased=False) + 1e-5).rsqrt()
        xhat = (x - mean) * rstd
        g = grad_output * weight
        g_mean = g.mean(dim=-1, keepdim=True)
        g_xhat = (g * xhat).mean(dim=-1, keepdim=True)
        grad_x = rstd * (g - g_mean - xhat * g_xhat)
        return grad_x, (grad_output * xhat).sum(dim=0), grad_output.sum(dim=0)


@original(lambda draw: (draw(3, 5), draw(5)))
class RMSNorm(Function):
    @staticmethod
    def forward(ctx, x, weight):
        rms = (x.pow(2).mean(dim=-1, keepdim=True) + 1e-6).rsqrt()
        ctx.save_for_backward(x, weight, rms)
        return x * rms * weight

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        x, weight, rms = ctx.saved_tensors
        g = grad_output * weight
        inner = (g * x).mean(dim=-1, keepdim=True)
        grad_x = rms * g - x * rms**3 * inner
        grad_weight = (grad_output * x * rms).sum(dim=0)
        return grad_x, grad_weight


@original(lambda draw: (draw(2, 4, 3), draw(4), draw(4)))
class GroupNorm(Function):
    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        groups = x.reshape(x.shape[0], 2, -1)
        mean = groups.mean(dim=-1, keepdim=True)
        rstd = (groups.var(dim=-1, keepdim=True, unbiased=False) + 1e-5).rsqrt()
        xhat = ((groups - mean) * rstd).reshape(x.shape)
        return xhat * weight[:, None] + bias[:, None]

    @staticmethod
    def backward(ctx, grad_output):
        x, weight = ctx.saved_tensors
        groups = x.reshape(x.shape[0], 2, -1)
        mean = groups.mean(dim=-1, keepdim=True)
        rstd = (groups.var(dim=-1, keepdim=True, unbiased=False) + 1e-5).rsqrt()
        xhat = (groups - mean) * rstd
        g = (grad_output * weight[:, None]).reshape(groups.shape)
        inner = (g * xhat).mean(dim=-1, keepdim=True)
        grad_x = (rstd * (g - g.mean(dim=-1, keepdim=True) - xhat * inner)).reshape(x.shape)
        grad_weight = (grad_output * xhat.reshape(x.shape)).sum(dim=(0, 2))
        return grad_x, grad_weight, grad_output.sum(dim=(0, 2))


@original(lambda draw: (draw(8, 3), draw(3), draw(3)))
class BatchNorm(Function):
    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        centred = x - x.mean(dim=0)
        rstd = (centred.pow(2).mean(dim=0) + 1e-5).rsqrt()
        return centred * rstd * weight + bias

    @staticmethod
    def backward(ctx, grad_output):
        x, weight = ctx.saved_tensors
        count = x.shape[0]
        centred = x - x.mean(dim=0)
        rstd = (centred.pow(2).mean(dim=0) + 1e-5).rsqrt()
        xhat = centred * rstd
        grad_bias = grad_output.sum(dim=0)
        grad_weight = (grad_output * xhat).sum(dim=0)
        scale = weight * rstd / count
        grad_x = scale * (count * grad_output - grad_bias - xhat * grad_weight)
        return grad_x, grad_weight, grad_bias


@original(lambda draw: (draw(3, 4),))
class EuclideanNorm(Function):
    @staticmethod
    def forward(ctx, x):
        norm = x.pow(2).sum(dim=-1).sqrt()
        ctx.save_for_backward(x, norm)
        return norm

    @staticmethod
    def backward(ctx, grad_output):
        x, norm = ctx.saved_tensors
        return (grad_output / norm).unsqueeze(-1) * x


@original(lambda draw: (draw(5, 4), draw(5, 4)))
class MeanSquaredError(Function):
    @staticmethod
    def forward(ctx, pred, target):
        ctx.save_for_backward(pred, target)
        return (pred - target).pow(2).mean()

    @staticmethod
    def backward(ctx, grad_output):
        pred, target = ctx.saved_tensors
        grad = grad_output * 2 * (pred - target) / pred.numel()
        return grad, -grad


@original(lambda draw: (draw(4, 5),))
class MeanAndVariance(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.mean(dim=1), x.var(dim=1, unbiased=True)

    @staticmethod
    def backward(ctx, grad_mean, grad_var):
        (x,) = ctx.saved_tensors
        size = x.shape[1]
        centred = x - x.mean(dim=1, keepdim=True)
        from_mean = grad_mean.unsqueeze(1).expand_as(x) / size
        from_var = grad_var.unsqueeze(1) * 2 * centred / (size - 1)
        return from_mean + from_var


@original(lambda draw: (draw(3, 6),))
class Cumsum(Function):
    @staticmethod
    def forward(ctx, x):
        return x.cumsum(dim=-1)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output.flip(-1).cumsum(dim=-1).flip(-1)


@original(lambda draw: (draw(4, 6), draw(4, 6)))
class CosineSimilarity(Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return (a * b).sum(-1) / (a.norm(dim=-1) * b.norm(dim=-1))

    @staticmethod
    def backward(ctx, grad_output):
        a, b = ctx.saved_tensors
        na = a.norm(dim=-1, keepdim=True)
        nb = b.norm(dim=-1, keepdim=True)
        cos = (a * b).sum(-1, keepdim=True) / (na * nb)
        g = grad_output.unsqueeze(-1)
        grad_a = g * (b / (na * nb) - cos * a / na**2)
        grad_b = g * (a / (na * nb) - cos * b / nb**2)
        return grad_a, grad_b
