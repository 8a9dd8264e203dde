"""Optimizers, models and leaves are known through whatever holds them, and by how they are used."""

from __future__ import annotations

import pytest

from tests.lint.marks import check_marked, check_quiet

_HEADER = """\
import torch
import torch.nn.functional as F
from dataclasses import dataclass, field
from torch import nn
from types import SimpleNamespace
"""

_MISTAKES = {
    "entries of a dictionary that another function has made": """
def build():
    w = torch.randn(4, 4, requires_grad=True)
    b = nn.Parameter(torch.zeros(4))
    net = nn.Linear(4, 4)
    updater = torch.optim.SGD(net.parameters(), 0.1)
    return {"w": w, "b": b, "net": net, "log": [], "updater": updater}

def update(state, x):
    w = state["w"]
    (x @ w).sum().backward()
    w -= 0.1 * w.grad  # GCS101
    state["b"].add_(1.0)  # GCS101
    state["net"].weight.mul_(0.9)  # GCS101
    state["net"].weight[0] += 1  # GCS101

def step(state, x):
    loss = state["net"](x).sum()
    loss.backward()
    state["updater"].step()  # GCS301
    state["log"].append(loss)  # GCS201

def main():
    state = build()
    for x in torch.randn(5, 3, 4):
        update(state, x)
        step(state, x)
""",
    "a tuple": """
def pair():
    m = nn.Linear(3, 1)
    return m, torch.optim.SGD(m.parameters(), 0.1)

def train(pair, xs):
    m, o = pair
    for x in xs:
        m(x).sum().backward()
        o.step()  # GCS301

def main(xs):
    train(pair(), xs)
""",
    "a dataclass": """
@dataclass
class State:
    w: torch.Tensor
    net: nn.Module
    updater: torch.optim.Optimizer
    log: list = field(default_factory=list)

def build():
    net = nn.Linear(4, 4)
    return State(torch.randn(4, requires_grad=True), net, torch.optim.SGD(net.parameters(), 0.1))

def step(s, x):
    loss = s.net(x).sum() * s.w.sum()
    loss.backward()
    s.w -= 0.1 * s.w.grad  # GCS101
    s.updater.step()  # GCS301
    s.log.append(loss)  # GCS201

def main():
    state = build()
    for x in torch.randn(5, 3, 4):
        step(state, x)
""",
    "a namespace": """
def build():
    net = nn.Linear(4, 4)
    state = SimpleNamespace(w=torch.randn(4, requires_grad=True), net=net)
    state.updater = torch.optim.SGD(net.parameters(), 0.1)
    return state

def step(s, x):
    loss = s.net(x).sum() * s.w.sum()
    loss.backward()
    s.w.sub_(0.1 * s.w.grad)  # GCS101
    s.updater.step()  # GCS301

def main():
    state = build()
    for x in torch.randn(5, 3, 4):
        step(state, x)
""",
    "an object of a class of the file": """
class Box:
    def __init__(self, net):
        lr = 0.1
        sgd = torch.optim.SGD(net.parameters(), lr)
        self.w = torch.randn(4, requires_grad=True)
        self.net = net
        self.updater = sgd
        self.log = []

def step(s, x):
    loss = s.net(x).sum() * s.w.sum()
    loss.backward()
    s.w.sub_(0.1 * s.w.grad)  # GCS101
    s.updater.step()  # GCS301
    s.log.append(loss)  # GCS201

def main():
    state = Box(nn.Linear(4, 4))
    for x in torch.randn(5, 3, 4):
        step(state, x)
""",
    "known by use alone": """
def fit(trainer, xs):
    for x in xs:
        trainer.net(x).sum().backward()
        trainer.updater.zero_grad()  # GCS302
        trainer.updater.step()

def train(box: Box, xs):
    for x in xs:
        loss = box.net(x).sum()
        loss.backward()
        box.sgd.zero_grad()  # GCS302
        box.sgd.step()
""",
}


@pytest.mark.parametrize("source", _MISTAKES.values(), ids=_MISTAKES)
def test_mistake_is_found_through_its_holder(source: str) -> None:
    check_marked(_HEADER + source)


_CORRECT = {
    "the same holders, used well": """
def build():
    net = nn.Linear(4, 4)
    updater = torch.optim.SGD(net.parameters(), 0.1)
    return {"w": torch.zeros(4, requires_grad=True), "net": net, "log": [], "updater": updater}

def step(state, x):
    loss = state["net"](x).sum() + state["w"].sum()
    state["updater"].zero_grad()
    loss.backward()
    state["updater"].step()
    with torch.no_grad():
        state["w"] -= 0.1 * state["w"].grad
    state["w"].grad = None
    state["log"].append(loss.item())

def main():
    state = build()
    for x in torch.randn(5, 3, 4):
        step(state, x)
""",
    "two calls hand over different things": """
def scale(x):
    x.mul_(2)
    return x

def main():
    scale(torch.ones(3))
    with torch.no_grad():
        scale(torch.ones(3, requires_grad=True))
""",
    "an optimizer that each call makes": """
def build(x):
    w = torch.zeros(4, requires_grad=True)
    return {"w": w, "sgd": torch.optim.SGD([w], 0.1)}

def fit(state, x):
    (state["w"] * x).sum().backward()
    state["sgd"].step()

def main(xs):
    for x in xs:
        fit(build(x), x)
""",
}


@pytest.mark.parametrize("source", _CORRECT.values(), ids=_CORRECT)
def test_correct_program_is_not_accused(source: str) -> None:
    check_quiet(_HEADER + source)
