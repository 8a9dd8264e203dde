"""A backward that does not ask what comes in.

Report: https://github.com/k2-fsa/k2/issues/341

The total score of a lattice has a custom backward, which returns the derivative of the score and leaves out
the incoming gradient. Summed up and minimised it would be right. The training maximised it: the incoming
gradient was -1, and every update had the wrong sign.

Run: gradcheck-suite verify backward_ignores_gradient.py:TotalScore --inputs backward_ignores_gradient.py:scores
"""

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
        return scores.softmax(dim=1)


def scores():
    torch.manual_seed(0)
    return torch.randn(3, 5, dtype=torch.float64, requires_grad=True)


def main():
    leaf = scores()
    (-TotalScore.apply(leaf)).sum().backward()
    print("all gradients negative:", bool((leaf.grad < 0).all()))


if __name__ == "__main__":
    main()
