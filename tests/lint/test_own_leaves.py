"""GCS301: gradients of a function's own tensors are zeroed, those of the model are not."""

from __future__ import annotations

import pytest

from gradcheck_lint.engine import lint_source

_ATTACK = """\
import torch
import torch.nn.functional as F

def attack(model, x, y, steps):
    delta = MADE
    for _ in range(steps):
        F.cross_entropy(model(x + delta), y).backward()
        delta.data = (delta + 0.1 * delta.grad.sign()).clamp(-1, 1)
        ZEROED
    return delta.detach()

def train(model, loader, optimizer):
    for x, y in loader:
        delta = attack(model, x, y, 7)
        FIRST
        loss = F.cross_entropy(model(x + delta), y)
        loss.backward()
        optimizer.step()
"""


@pytest.mark.parametrize(
    "made",
    [
        "torch.zeros_like(x, requires_grad=True)",
        "torch.empty_like(x).uniform_(-1, 1).requires_grad_()",
        "x.clone().detach().requires_grad_(True)",
        "torch.randn(3).cuda().requires_grad_()",
    ],
)
@pytest.mark.parametrize(
    "zeroed", ["delta.grad.zero_()", "delta.grad.data.zero_()", "delta.grad = None"]
)
def test_an_attack_zeroes_its_own_gradient_alone(made, zeroed):
    source = _ATTACK.replace("MADE", made).replace("ZEROED", zeroed)
    assert _found(source.replace("FIRST", "pass")) == [("GCS301", 18)]
    assert _found(source.replace("FIRST", "optimizer.zero_grad()")) == []


@pytest.mark.parametrize("made", ["start(x)", "model.delta", "x"])
def test_a_tensor_that_may_belong_to_the_model(made):
    source = _ATTACK.replace("MADE", made).replace("ZEROED", "delta.grad.zero_()")
    assert _found(source.replace("FIRST", "pass")) == []


_FIT = """\
import torch

def fit(x, y, steps):
    w = torch.zeros(3)
    w.requires_grad_()
    optimizer = OPTIMIZER
    for _ in range(steps):
        loss = (x @ w - y).pow(2).mean()
        loss.backward()
        optimizer.step()
        w.grad.zero_()
    return w
"""


@pytest.mark.parametrize(
    "optimizer",
    [
        "torch.optim.SGD([w], lr=0.1)",
        'torch.optim.SGD([{"params": [w]}], lr=0.1)',
        'torch.optim.SGD([{"params": w}], lr=0.1)',
        "torch.optim.SGD(params=(w,), lr=0.1)",
        "make_optimizer([w])",
    ],
)
def test_a_tensor_that_the_optimizer_is_given(optimizer):
    assert _found(_FIT.replace("OPTIMIZER", optimizer)) == []


def _found(source):
    findings = lint_source(source.encode(), "attack.py")
    return [(found.code, found.location.line) for found in findings]
