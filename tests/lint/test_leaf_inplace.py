from __future__ import annotations

import re

import pytest

from gradcheck_lint.engine import lint_source

_HEADER = "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n"
_MARK = re.compile(r"# !")

_MISTAKES = {
    "one finding for what is written to twice in a row": """
def average(model):
    w = torch.zeros(3, requires_grad=True)
    w.mul_(0.9).add_(model.w, alpha=0.1)  # !
    w.sub_(1)  # !
""",
    "manual sgd": """
w = torch.randn(3, 1, requires_grad=True)
b = torch.zeros(1, requires_grad=True)
for _ in range(10):
    loss = (w * b).sum()
    loss.backward()
    w -= 0.1 * w.grad  # !
    b -= 0.1 * b.grad  # !
    w.grad.zero_()
    b.grad.zero_()
""",
    "func": """
def f():
    w = torch.zeros(3)
    w.requires_grad = True
    w[0] = 5  # !
    w.fill_(2)  # !
    v = w[1:]
    v *= 2  # !
    return w
""",
    "module": """
class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(3))
        self.w.normal_()  # !
        self.lin = nn.Linear(3, 3)
        self.lin.weight.mul_(0.1)  # !
    def forward(self, x):
        self.w += 1  # !
        return x @ self.w
""",
    "params": """
model = nn.Linear(3, 3)
for name, p in model.named_parameters():
    p.mul_(0.5)  # !
for p in model.parameters():
    p -= 0.1 * p.grad  # !
params = list(model.parameters())
for p in params:
    p.add_(p.grad, alpha=-0.1)  # !
""",
    "alias, relu_": """
x = torch.tensor([1., 2.], requires_grad=True)
y = x
y.mul_(2)  # !
F.relu(x, inplace=True)  # !
torch.relu_(x)  # !
x.T.add_(1)  # !
if x.sum() > 0:
    x /= 2  # !
""",
    "closure": """
w = torch.randn(3, requires_grad=True)
def update(lr):
    w.sub_(lr * w.grad)  # !
update(0.1)
""",
    "zip": """
ws = [torch.randn(3, requires_grad=True) for _ in range(3)]
for w in ws:
    w -= 1  # !
grads = torch.autograd.grad(sum(w.sum() for w in ws), ws)
for w, g in zip(ws, grads):
    w -= 0.1 * g  # !
""",
}

_CORRECT = {
    "data": """
import copy
def f(q, target):
    for p in target.parameters():
        p.requires_grad = False
    for p, tp in zip(q.parameters(), target.parameters()):
        tp.mul_(0.9)
        tp.add_(p)
""",
    "nograd fn call": """
def soft(q, t, tau):
    for a, b in zip(q.parameters(), t.parameters()):
        b.mul_(1 - tau); b.add_(tau * a)
class Agent:
    def learn(self):
        with torch.no_grad():
            soft(self.q, self.t, 0.1)
""",
    "set_grad": """
torch.set_grad_enabled(False)
w = torch.randn(3, requires_grad=True)
w += 1
""",
    "ctx": """
w = torch.randn(3, requires_grad=True)
ctx = torch.no_grad()
with ctx:
    w += 1
""",
    "no_grad deco closure": """
w = torch.randn(3, requires_grad=True)
@torch.no_grad()
def upd():
    w.mul_(2)
with torch.inference_mode():
    w.clone().mul_(2)
""",
    "rebinding w": """
class M(nn.Module):
    def __init__(self, w):
        super().__init__()
        self.w = nn.Parameter(w)
        self.register_buffer("c", torch.zeros(3))
        self.lin = nn.Linear(3,3)
        with torch.no_grad():
            self.lin.weight.mul_(0.1)
        self.lin.weight.data.normal_()
        nn.init.zeros_(self.lin.bias)
    def forward(self, x):
        self.c += 1
        h = self.lin(x)
        h += self.w
        h[0] = 0
        w = self.w
        w = w * 2
        w += 1
        w.mul_(3)
        return h
""",
    "clone": """
w = torch.randn(3, requires_grad=True)
v = w.clone()
v += 1
u = w * 2
u.mul_(2)
z = torch.zeros(3)
z += w
z[0] = 1
q = w.detach()
q += 1
s = w.sum()
s += 1
t = w[torch.tensor([0])]
t += 1
""",
}


@pytest.mark.parametrize("source", _MISTAKES.values(), ids=_MISTAKES)
def test_mistake_is_reported_on_exactly_the_marked_lines(source):
    text = _HEADER + source
    marked = [line for line, code in enumerate(text.split("\n"), 1) if _MARK.search(code)]
    found = lint_source(text.encode(), "sample.py")
    assert [(f.code, f.location.line) for f in found] == [("GCS101", line) for line in marked]


@pytest.mark.parametrize("source", _CORRECT.values(), ids=_CORRECT)
def test_correct_look_alike_is_silent(source):
    assert lint_source((_HEADER + source).encode(), "sample.py") == ()
