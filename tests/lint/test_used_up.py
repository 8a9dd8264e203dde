"""GCS307: optimizers that are given an iterator of parameters which nothing is left of."""

from __future__ import annotations

import pytest

from gradcheck_lint.engine import lint_source

_BUILD = """\
import torch
from torch import nn

def build(model: nn.Module, lr, verbose):
    params = {made}
    {used}
    return torch.optim.Adam(params, lr=lr)
"""
_MADE = [
    "(p for p in model.parameters() if p.requires_grad)",
    "filter(lambda p: p.requires_grad, model.parameters())",
    "model.parameters()",
]
_USED = [
    "print(sum(p.numel() for p in params))",
    "count = len(list(params))",
    "for p in params: print(p.shape)",
]


@pytest.mark.parametrize("made", _MADE)
@pytest.mark.parametrize("used", _USED)
def test_an_iterator_that_was_gone_through(made, used):
    assert _found(_BUILD.format(made=made, used=used)) == [("GCS307", 7)]


@pytest.mark.parametrize("used", _USED)
def test_a_list_that_was_gone_through(used):
    assert _found(_BUILD.format(made="list(model.parameters())", used=used)) == []


@pytest.mark.parametrize(
    "used",
    [
        "pass",
        "params = list(params); print(len(params))",
        "if verbose: print(sum(p.numel() for p in params))",
        "for p in params: break",
        "print(sum(p.numel() for p in model.parameters()))",
        "show = lambda: sum(p.numel() for p in params)",
    ],
)
def test_an_iterator_of_which_something_may_be_left(used):
    assert _found(_BUILD.format(made=_MADE[0], used=used)) == []


def test_groups():
    source = """\
import torch
from torch import nn

def build(model):
    body = (p for n, p in model.named_parameters() if "head" not in n)
    head = model.head.parameters()
    print(sum(p.numel() for p in body))
    return torch.optim.SGD([{"params": body}, {"params": head, "lr": 1.0}], lr=0.1)
"""
    assert _found(source) == [("GCS307", 8)]


_LEARNER = """\
import torch
from torch import nn

class Learner:
    def __init__(self, model, classes):
        self.model = model
        FIRST
        self.optimizer = torch.optim.Adam(self.model.parameters())
        LAST

    def replace_head(self, classes):
        self.model.head = nn.Linear(8, classes)

    def fit(self, loader):
        for x in loader:
            self.optimizer.zero_grad()
            self.model(x).mean().backward()
            self.optimizer.step()
"""


def test_a_head_that_the_constructor_lets_a_method_replace():
    call = "self.replace_head(classes)"
    assert _found(_LEARNER.replace("FIRST", "pass").replace("LAST", call)) == [("GCS307", 12)]
    assert _found(_LEARNER.replace("FIRST", call).replace("LAST", "pass")) == []


_STATE = """\
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.cell = nn.LSTMCell(width, width)
        self.h = self.c = None

    def reset(self, x):
        self.h, self.c = torch.zeros_like(x), torch.zeros_like(x)

    def forward(self, x):
        self.h, self.c = self.cell(x, GIVEN)
        return self.h

def train(model, loader, optimizer):
    BEFORE
    for x in loader:
        INSIDE
        optimizer.zero_grad()
        model(x).mean().backward()
        optimizer.step()

def main(loader):
    model = Net(8)
    train(model, loader, torch.optim.Adam(model.parameters()))
"""


@pytest.mark.parametrize(
    ("given", "before", "inside", "expected"),
    [
        ("(self.h, self.c)", "model.reset(loader)", "pass", [("GCS202", 14)]),
        ("(self.h.detach(), self.c.detach())", "model.reset(loader)", "pass", []),
        ("(self.h, self.c)", "pass", "model.reset(x)", []),
    ],
)
def test_states_in_a_tuple_of_a_model_that_a_caller_hands_in(given, before, inside, expected):
    source = _STATE.replace("GIVEN", given).replace("BEFORE", before).replace("INSIDE", inside)
    assert _found(source) == expected


def _found(source):
    findings = lint_source(source.encode(), "build.py")
    return [(found.code, found.location.line) for found in findings]
