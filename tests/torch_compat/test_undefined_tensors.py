"""Searches through all tensors of a process pass over those that can't be asked."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import gradcheck_suite as gs
from gradcheck_suite._torch_compat import gradient_hooks, node_of, node_of_gradient


class Undefined(torch.Tensor):
    """Refuses as torch 2.6 does for an object whose C++ tensor is undefined."""

    @property
    def grad_fn(self):
        raise RuntimeError("cannot call get_autograd_meta() on undefined tensor")

    requires_grad = _backward_hooks = grad_fn


def test_a_tensor_that_refuses_has_no_node_and_no_hooks():
    tensor = torch.zeros(1).as_subclass(Undefined)
    assert (node_of(tensor), node_of_gradient(tensor), gradient_hooks(tensor)) == (None, None, ())


def test_others_have_theirs():
    x = torch.ones(2, requires_grad=True)
    assert node_of(x) is None
    y = x * x * x
    assert node_of(y) is y.grad_fn
    hook = y.register_hook(lambda gradient: gradient)
    assert len(gradient_hooks(y)) == 1
    hook.remove()
    (x.grad,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    assert node_of_gradient(x) is x.grad.grad_fn
    x.grad = None


@pytest.mark.slow
def test_an_audit_finds_who_keeps_graphs_beside_one():
    beside = torch.zeros(1).as_subclass(Undefined)
    model, losses = nn.Linear(2, 1), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gs.audit() as session:
        for _ in range(6):
            optimizer.zero_grad()
            loss = model(torch.ones(3, 2)).sum()
            loss.backward()
            optimizer.step()
            losses.append(loss)
    assert [finding.code for finding in session.findings] == ["GCS201"]
    assert not [line for line in session.report.not_covered if "bug in" in line]
    assert type(beside) is Undefined
