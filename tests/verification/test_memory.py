"""A check of n inputs and m outputs makes nothing of n times m elements unless asked to."""

from __future__ import annotations

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gradcheck_suite.verification import check_gradients

SIZE = 5000


class Largest(TorchDispatchMode):
    """Remembers the number of elements of the largest tensor that any operation returned."""

    def __init__(self):
        super().__init__()
        self.seen = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for leaf in torch.utils._pytree.tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self.seen = max(self.seen, leaf.numel())
        return result


def test_memory_grows_with_the_tensors_and_not_with_the_jacobian(wrong):
    x = torch.linspace(-1, 1, SIZE, dtype=torch.float64).requires_grad_()
    for function in (lambda x: x.sin() * x.sum(), wrong.Percent):
        with Largest() as largest:
            check_gradients(function, x, variations=(), order=1)
        assert SIZE <= largest.seen <= 4 * SIZE
