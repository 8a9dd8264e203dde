"""A custom Function that never dies.

Report: https://github.com/pytorch/pytorch/issues/25340

The Function keeps its own output as `ctx.y`. The output holds its node, and the node holds `ctx`: a circle
that Python's collector cannot see through, as a part of it is in C++. Everything else on `ctx` stays as
well, and memory grows with each call whose backward does not run.
"""

from __future__ import annotations

import torch


class Exp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.y = y
        return y

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * ctx.y


def main():
    torch.manual_seed(0)
    x = torch.rand(8, 8, requires_grad=True)
    for _ in range(3):
        Exp.apply(x).sum().backward()


if __name__ == "__main__":
    main()
