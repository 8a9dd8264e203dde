"""backward_ignores_gradient.py, corrected."""

from __future__ import annotations

import torch


class TotalScore(torch.autograd.Function):
    @staticmethod
    def forward(ctx, scores):
        ctx.save_for_backward(scores)
        return scores.logsumexp(dim=1)

    @staticmethod
    def backward(ctx, grad_output):
        (scores,) = ctx.saved_tensors
        return grad_output[:, None] * scores.softmax(dim=1)


def scores():
    torch.manual_seed(0)
    return torch.randn(3, 5, dtype=torch.float64, requires_grad=True)


def main():
    leaf = scores()
    (-TotalScore.apply(leaf)).sum().backward()
    print("all gradients negative:", bool((leaf.grad < 0).all()))


if __name__ == "__main__":
    main()
