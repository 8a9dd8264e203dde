"""Programs whose leaves only look overwritten or lost, and wrong ones unlike the examples."""

from __future__ import annotations

import pytest

from gradcheck_lint.engine import lint_source

_HEAD = """\
import torch
import torch.nn as nn
import torch.nn.functional as F

"""

# The code of the mistake that each looks like comes first.
_CORRECT = {
    "GCS101 lambda stored run under no_grad": """\
def run():
    w = torch.ones(3, requires_grad=True)
    step = lambda: w.sub_(0.1)
    (w * w).sum().backward()
    with torch.no_grad():
        step()
""",
    "GCS101 nested handed": """\
def run(apply):
    w = torch.ones(3, requires_grad=True)

    def step():
        w.sub_(0.1)

    apply(step)
""",
    "GCS101 unittest": """\
import unittest

class T(unittest.TestCase):
    def test(self):
        w = torch.ones(3, requires_grad=True)
        self.assertRaises(RuntimeError, lambda: w.add_(1))
        with self.assertRaisesRegex(RuntimeError, "leaf"):
            w.add_(1)
""",
    "GCS102 detach again": """\
def f(x):
    w = torch.ones(3, requires_grad=True)
    for _ in range(3):
        (w * x).sum().backward()
        w = w - 0.1 * w.grad
        w = w.detach().requires_grad_()
""",
    "GCS102 to the dtype that it has": """\
class M(nn.Module):
    def __init__(self, width, device):
        super().__init__()
        self.w = nn.Parameter(torch.ones(width, device=device)).float()
        self.v = nn.Parameter(torch.randn(width)).to(torch.float32)
""",
    "GCS102 parameter again": """\
def f(x):
    w = nn.Parameter(torch.ones(3))
    for _ in range(3):
        (w * x).sum().backward()
        w = w - 0.1 * w.grad
        w = nn.Parameter(w)
""",
    "GCS102 helper leaf again": """\
from .util import releaf

def f(x):
    w = torch.ones(3, requires_grad=True)
    for _ in range(3):
        (w * x).sum().backward()
        w = w - 0.1 * w.grad
        w = releaf(w)
""",
    "GCS102 new leaf each iteration": """\
def f(xs):
    w = torch.ones(3, requires_grad=True)
    for x in xs:
        (w * x).sum().backward()
        w = w - 0.1 * w.grad
        print(w)
        w = torch.ones(3, requires_grad=True)
""",
    "GCS102 break after": """\
def f(xs):
    w = torch.ones(3, requires_grad=True)
    for x in xs:
        (w * x).sum().backward()
        if x.sum() > 3:
            w = w - 0.1 * w.grad
            break
    return w
""",
    "GCS102 return after": """\
def f(xs):
    w = torch.ones(3, requires_grad=True)
    for x in xs:
        (w * x).sum().backward()
        if x.sum() > 3:
            w = w - 0.1 * w.grad
            return w
""",
    "GCS102 reset at loop head": """\
def f(xs):
    w = torch.ones(3, requires_grad=True)
    best = w.detach()
    for x in xs:
        w = best.clone().requires_grad_()
        (w * x).sum().backward()
        w = w - 0.1 * w.grad
        best = w.detach()
""",
    "GCS102 setattr releaf": """\
def f(xs):
    w = torch.ones(3, requires_grad=True)
    for x in xs:
        (w * x).sum().backward()
        w = w - 0.1 * w.grad
        setattr(w, "requires_grad", True)
""",
    "GCS102 bound anew in other ways": """\
def f(xs):
    w = torch.ones(3, requires_grad=True)
    for x in xs:
        (w * x).sum().backward()
        w = w - 0.1 * w.grad
        w: torch.Tensor = torch.ones(3, requires_grad=True)
""",
    "GCS102 made a leaf by another function": """\
from .leaves import make_leaf_

def f(xs):
    w = torch.ones(3, requires_grad=True)
    for x in xs:
        (w * x).sum().backward()
        w = w - 0.1 * w.grad
        make_leaf_(w)
""",
}

_WRONG = {
    "GCS101 helper function": """\
class Trainer:
    def __init__(self):
        self.w = torch.randn(3, requires_grad=True)

    def step(self):
        loss = (self.w**2).sum()
        loss.backward()
        self.w -= 0.1 * self.w.grad
""",
    "GCS101 loop": """\
def fit(x, y):
    w, b = torch.randn(3, requires_grad=True), torch.zeros(1, requires_grad=True)
    for _ in range(10):
        loss = (x @ w + b - y).pow(2).mean()
        loss.backward()
        w -= 0.1 * w.grad
        b -= 0.1 * b.grad
""",
    "GCS101 init weight": """\
class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.Linear(3, 3)
        self.l.weight.fill_(0.1)
""",
    "GCS101 subscript": """\
class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.e = nn.Embedding(10, 3)
        self.e.weight[0] = 0
""",
    "GCS101 delta clamp": """\
def attack(model, x, y):
    delta = torch.zeros_like(x).requires_grad_(True)
    loss = F.cross_entropy(model(x + delta), y)
    loss.backward()
    delta += 0.1 * delta.grad.sign()
""",
    "GCS101 dict params": """\
def fit():
    params = {"w": torch.randn(3, requires_grad=True)}
    params["w"].add_(1.0)
""",
    "GCS101 copy_": """\
class M(nn.Module):
    def __init__(self, v):
        super().__init__()
        self.w = nn.Parameter(torch.empty(3))
        self.w.copy_(v)
""",
    "GCS102 with two": """\
def f(x, y):
    a = torch.randn(1, requires_grad=True)
    b = torch.randn(1, requires_grad=True)
    for i in range(10):
        loss = ((a * x + b - y) ** 2).mean()
        loss.backward()
        a = a - 0.1 * a.grad
        b = b - 0.1 * b.grad
""",
    "GCS102 under no_grad": """\
def f(x, y):
    a = torch.randn(1, requires_grad=True)
    for i in range(10):
        loss = ((a * x - y) ** 2).mean()
        loss.backward()
        with torch.no_grad():
            a = a - 0.1 * a.grad
""",
    "GCS102 to device": """\
class M(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.w = nn.Parameter(torch.randn(3)).to(d)
        self.v = torch.nn.Parameter(torch.zeros(1)) / 3
""",
    "GCS102 to float32 of another dtype": """\
class M(nn.Module):
    def __init__(self, array):
        super().__init__()
        self.w = nn.Parameter(torch.from_numpy(array)).float()
""",
    "GCS102 while": """\
def f(x, y):
    w = torch.randn(3, requires_grad=True)
    n = 0
    while n < 10:
        loss = (w * x - y).abs().sum()
        loss.backward()
        w = w - w.grad * 0.01
        n += 1
""",
    "GCS105 normalise weights in forward": """\
class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.Linear(3, 3)

    def forward(self, x):
        h = self.l(x)
        h.data.clamp_(0, 1)
        return h.sigmoid()
""",
    "GCS102 shown": """\
def f(xs):
    w = torch.ones(3, requires_grad=True)
    for x in xs:
        (w * x).sum().backward()
        w = w - 0.1 * w.grad
        print(w)
""",
}


@pytest.mark.parametrize("program", _CORRECT.values(), ids=_CORRECT.keys())
def test_nothing_is_said_of_what_is_right(program: str) -> None:
    compile(program, "train.py", "exec")
    assert lint_source((_HEAD + program).encode(), "train.py") == ()


@pytest.mark.parametrize("name", _WRONG)
def test_what_is_wrong_is_found(name: str) -> None:
    found = lint_source((_HEAD + _WRONG[name]).encode(), "train.py")
    assert name[:6] in [finding.code for finding in found]
