"""Wrong Functions, each with the line that one would change: its comment says ``# here``."""

from __future__ import annotations

import torch
from torch.autograd import Function

BLOCK = 4


def unbroadcast(grad, shape):
    for dim, size in enumerate(shape):
        if size == 1 and grad.size(dim) != 1:
            grad = grad.mean(dim, keepdim=True)  # here: MeanInHelper
    return grad


def summed(grad, shape):
    return grad.sum_to_size(shape)


def norm_backward(grad, x, weight):
    grad_weight = (grad * x).sum(0, keepdim=True)
    grad_x = grad * weight + x  # here: InHelper
    return grad_x, grad_weight


class Product(Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x * weight


class MeanInHelper(Product):
    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        return g * weight, unbroadcast(g * x, weight.shape)


class MeanAtHand(Product):
    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        wide = (g * x).mean(0, keepdim=True)  # here: MeanAtHand
        return g * weight, wide


class SecondElement(Product):
    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        return (
            g * weight,
            2.5 * summed(g * x, weight.shape),  # here: SecondElement
        )


class NameInTuple(Product):
    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        grad_x = grad_weight = None
        if ctx.needs_input_grad[0]:
            grad_x = g * weight
        if ctx.needs_input_grad[1]:
            grad_weight = summed(g * g, weight.shape) * x.sum()  # here: NameInTuple
        return grad_x, grad_weight


class Renamed(Product):
    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        made = g * weight * 3.0  # here: Renamed
        result = made.to(x.dtype)
        return result.view_as(x), summed(g * x, weight.shape)


class IntoList(Product):
    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        grads = [None, None]
        grads[0] = g * weight
        grads[1] = -summed(g * x, weight.shape)  # here: IntoList
        return tuple(grads)


class FilledBuffer(Product):
    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        out = torch.zeros_like(x)
        out[1:] = (g * weight)[1:]  # here: FilledBuffer
        return out, summed(g * x, weight.shape)


class NoneForWeight(Product):
    @staticmethod
    def backward(ctx, g):
        weight = ctx.saved_tensors[1]
        return (
            g * weight,
            None,  # here: NoneForWeight
        )


class InHelper(Product):
    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        return norm_backward(g, x, weight)


class UnpackedHelper(Product):
    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        grad_x, grad_weight = other_backward(g, x, weight)
        return grad_x, grad_weight


def other_backward(grad, x, weight):
    return grad * weight, summed(grad + x, weight.shape)  # here: UnpackedHelper


class WrongGuard(Product):
    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        grad_x = grad_weight = None
        if ctx.needs_input_grad[1]:  # here: WrongGuard
            grad_x = g * weight
        if ctx.needs_input_grad[1]:
            grad_weight = summed(g * x, weight.shape)
        return grad_x, grad_weight


class Blocked(Product):
    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        count = x.size(0) // BLOCK  # here: Blocked
        total = g.new_zeros(weight.shape)
        for number in range(count):
            rows = slice(number * BLOCK, (number + 1) * BLOCK)
            total += (g[rows] * x[rows]).sum(0, keepdim=True)
        return g * weight, total


class Clamped(Product):
    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        small = g.clamp(-0.5, 0.5)  # here: Clamped
        return small * weight, summed(small * x, weight.shape)


class WritesGiven(Product):
    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        flat = g.view(-1)
        flat *= 2.0  # here: WritesGiven
        return g * weight / 2.0, summed(g * x, weight.shape) / 2.0


class WritesSaved(Product):
    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        grad_weight = summed(g * x, weight.shape)
        torch.mul(g, weight, out=x.data)  # here: WritesSaved
        return x.data, grad_weight


class Draws(Product):
    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        keep = torch.rand_like(g) > 0.5  # here: Draws
        return g * weight * keep, summed(g * x, weight.shape)


class ReadsMemory(Product):
    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        known = torch.as_strided(x, x.shape, (x.size(1), 1))  # here: ReadsMemory
        return g * weight, summed(g * known, weight.shape)


class ReadsGiven(Product):
    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        rows = torch.as_strided(g, g.shape, (g.size(1), 1))  # here: ReadsGiven
        return rows * weight, summed(rows * x, weight.shape)


class RaisesForLayouts(Product):
    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        flat = x.view(-1)  # here: RaisesForLayouts
        return g * weight, summed(g * flat.view(x.shape), weight.shape)


class IgnoresSecond(Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x * weight, x + weight

    @staticmethod
    def backward(
        ctx,
        g,
        also,  # noqa: ARG004 # here: IgnoresSecond
    ):
        x, weight = ctx.saved_tensors
        return g * weight, summed(g * x, weight.shape)


class GivesUp(Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, weight)
        return x * weight, x + weight

    @staticmethod
    def backward(ctx, g, also):
        x, weight = ctx.saved_tensors
        if also is None:  # here: GivesUp
            return None, None
        if g is None:
            g = torch.zeros_like(also)
        return g * weight + also, summed(g * x + also, weight.shape)


class TooFew(Product):
    @staticmethod
    def backward(ctx, g):
        weight = ctx.saved_tensors[1]
        return g * weight  # here: TooFew


class SavesIntermediate(Function):
    @staticmethod
    def forward(ctx, x, weight):
        root = torch.exp(0.5 * x)
        ctx.save_for_backward(root, weight)  # here: SavesIntermediate
        return root * root * weight

    @staticmethod
    def backward(ctx, g):
        root, weight = ctx.saved_tensors
        return g * root * root * weight, summed(g * root * root, weight.shape)


class DetachesInBackward(Product):
    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        known = weight.detach()  # here: DetachesInBackward
        return g * known, summed(g * x, weight.shape)


class WritesInput(Function):
    @staticmethod
    def forward(ctx, x, weight):
        flat = x.view(-1)
        flat.mul_(2.0)  # here: WritesInput
        ctx.save_for_backward(weight)
        return x * weight

    @staticmethod
    def backward(ctx, g):
        (weight,) = ctx.saved_tensors
        return g * weight * 2.0, None
