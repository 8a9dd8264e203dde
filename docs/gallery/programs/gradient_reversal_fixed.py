"""gradient_reversal.py, corrected."""

from __future__ import annotations

import torch
from torch.autograd import Function


class GradReverse(Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad_output):
        return -ctx.factor * grad_output, None


def main():
    x = torch.ones(3, requires_grad=True)
    GradReverse.apply(x, 0.5).sum().backward()
    print(x.grad)


if __name__ == "__main__":
    main()
