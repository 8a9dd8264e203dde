"""Which hooks modules and leaves have."""

from __future__ import annotations

import torch
from torch import nn

from gradcheck_suite._torch_compat import hooks_of


def hook(*_):
    return None


def test_each_kind_of_hook_is_told_until_it_is_removed():
    layer = nn.Linear(2, 2)
    handles = [
        layer.register_forward_pre_hook(hook),
        layer.register_forward_hook(hook),
        layer.register_full_backward_pre_hook(hook),
        layer.register_full_backward_hook(hook),
    ]
    kinds = ["forward pre-", "forward", "backward pre-", "backward"]
    assert hooks_of(layer) == [(kind, hook) for kind in kinds]
    for handle in handles:
        handle.remove()
    assert hooks_of(layer) == []


def test_hooks_on_the_gradient_of_a_leaf_are_told():
    leaf = torch.ones(2, requires_grad=True)
    assert hooks_of(leaf) == []
    leaf.register_hook(hook)
    leaf.register_post_accumulate_grad_hook(hook)
    assert hooks_of(leaf) == [("backward", hook), ("gradient", hook)]
