"""GCS102: updates by hand that put computed tensors in the place of the leaves of a container."""

from __future__ import annotations

import pytest

from gradcheck_lint.engine import lint_source

_LOOP = """\
import torch

def fit(x, y, model, lr, gradients):
    w = {"a": torch.randn(3, 1, requires_grad=True), "b": torch.zeros(1, requires_grad=True)}
    for step in range(100):
        START
        loss = ((x @ w["a"] + w["b"] - y) ** 2).mean()
        loss.backward()
        UPDATE
    return w
"""

_LOST = {
    "by its key": "for k in w: w[k] = w[k] - lr * w[k].grad",
    "under a key": 'w["a"] = w["a"] - lr * w["a"].grad',
    "by its name": "for k, p in w.items(): w[k] = p - lr * p.grad",
    "by its number": "for i, p in enumerate(w): w[i] = p - lr * p.grad",
    "a dictionary": "w = {k: p - lr * p.grad for k, p in w.items()}",
    "a list": "w = [p - lr * p.grad for p in w]",
    "a list of a generator": "w = list(p - lr * p.grad for p in w)",
    "over lines": "w = {\n            k: p - lr * p.grad\n            for k, p in w.items()}",
    "of data": "for k in w: w[k] = w[k].data - lr * w[k].grad",
}

_KEPT = {
    "in place": "with torch.no_grad():\n            for k in w: w[k] -= lr * w[k].grad",
    "a leaf again": "for k in w: w[k] = (w[k] - lr * w[k].grad).detach().requires_grad_()",
    "a leaf again later": (
        "w = {k: p - lr * p.grad for k, p in w.items()}\n"
        "        for p in w.values(): p.requires_grad_(True)"
    ),
    "handed to a function": "w = {k: p - lr * p.grad for k, p in w.items()}\n        renew(w)",
    "then left": "w = {k: p - lr * p.grad for k, p in w.items()}\n        break",
    "by gradients of grad()": "w = {k: p - lr * gradients[k] for k, p in w.items()}",
    "under another name": "new = {k: p - lr * p.grad for k, p in w.items()}",
    "gradients": "found = {k: p.grad for k, p in w.items()}",
    "another tensor's gradient": 'for k in w: w[k] = w[k] - lr * gradients["a"].grad',
}


def _found(source):
    return [found.code for found in lint_source(source.encode(), "sample.py")]


@pytest.mark.parametrize("update", _LOST.values(), ids=_LOST)
def test_computed_tensors_in_the_place_of_leaves_are_reported(update):
    source = _LOOP.replace("START", "pass").replace("UPDATE", update)
    assert _found(source) == ["GCS102"]


@pytest.mark.parametrize("update", _KEPT.values(), ids=_KEPT)
def test_leaves_that_stay_or_are_made_again_are_not(update):
    source = _LOOP.replace("START", "pass").replace("UPDATE", update)
    assert set(_found(source)) <= {"GCS301"}  # nobody zeroes what is changed in place


def test_a_copy_that_each_iteration_makes_is_not():
    start = "w = {k: p.detach().requires_grad_() for k, p in model.named_parameters()}"
    source = _LOOP.replace("START", start).replace("UPDATE", _LOST["by its key"])
    assert _found(source) == []


def test_the_inner_loop_of_meta_learning_is_not():
    source = """\
import torch

def adapt(model, x, y, steps, lr):
    fast = dict(model.named_parameters())
    for _ in range(steps):
        loss = torch.func.functional_call(model, fast, (x,)).sub(y).pow(2).mean()
        gradients = torch.autograd.grad(loss, tuple(fast.values()), create_graph=True)
        fast = {k: p - lr * g for (k, p), g in zip(fast.items(), gradients)}
    return fast
"""
    assert _found(source) == []


_OPTIMIZER = """\
import torch

class Descent:
    def __init__(self, parameters, lr):
        self.parameters, self.lr = list(parameters), lr
    def step(self):
        for i, p in enumerate(self.parameters):
            UPDATE
    OTHER

def train(model, loader):
    optimizer = Descent(model.parameters(), 0.1)
    for x in loader:
        model.zero_grad()
        model(x).mean().backward()
        optimizer.step()
"""


@pytest.mark.parametrize(
    ("update", "other", "expected"),
    [
        ("self.parameters[i] = p - self.lr * p.grad", "", ["GCS102"]),
        ("p.data = p - self.lr * p.grad", "", []),
        (
            "self.parameters[i] = p - self.lr * p.grad",
            "def free(self):\n        for p in self.parameters: p.requires_grad_()",
            [],
        ),
    ],
)
def test_an_optimizer_by_hand(update, other, expected):
    found = _found(_OPTIMIZER.replace("UPDATE", update).replace("OTHER", other))
    assert [code for code in found if code == "GCS102"] == expected
