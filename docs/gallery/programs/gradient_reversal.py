"""A Function with a constructor.

Report: https://github.com/NVIDIA/apex/issues/470

Gradient reversal, as papers on domain adaptation had it in 2017: the factor is an argument of the
constructor, and forward and backward are methods. It came with a warning, which was taken for one of another
library, then with an error.
"""

from __future__ import annotations

import torch
from torch.autograd import Function


class GradReverse(Function):
    def __init__(self, factor):
        self.factor = factor

    def forward(self, x):
        return x.view_as(x)

    def backward(self, grad_output):
        return -self.factor * grad_output


def main():
    x = torch.ones(3, requires_grad=True)
    GradReverse(0.5)(x).sum().backward()
    print(x.grad)


if __name__ == "__main__":
    main()
