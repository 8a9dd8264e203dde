"""An audit that is over leaves nothing for the garbage collector."""

from __future__ import annotations

import gc

import pytest
import torch

import gradcheck_suite as gs
from gradcheck_suite.auditing.session import kept_ready


def nothing() -> None:
    pass


def one_backward() -> None:
    leaf = torch.ones(3, requires_grad=True)
    copy = leaf * 1
    copy[0] = 2
    (copy * copy).exp().sum().backward()


def three_steps() -> None:
    layer = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        layer(torch.ones(2, 3)).sum().backward()
        optimizer.step()


def audited(work) -> None:
    with gs.audit() as session:
        work()
    assert not session.findings


@pytest.mark.parametrize("work", [nothing, one_backward, three_steps])
def test_an_audit_leaves_no_cycles(work):
    with kept_ready():
        audited(work)
        gc.collect()
        gc.disable()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            audited(work)
            gc.collect()
            left = {type(each).__module__ for each in gc.garbage}
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()
    assert not {name for name in left if name.startswith("gradcheck_suite")}


def test_a_graph_that_outlives_its_audit_is_still_checked():
    leaf = torch.ones(3, requires_grad=True)
    with gs.audit():
        middle = leaf.exp()
        loss = middle.sum()
    with torch.no_grad():
        middle.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_graph_that_outlives_its_audit_gives_the_same_gradients():
    leaf = torch.ones(3, requires_grad=True)
    with gs.audit():
        loss = leaf.exp().sum()
    loss.backward()
    assert leaf.grad is not None
    assert torch.equal(leaf.grad, torch.ones(3).exp())
