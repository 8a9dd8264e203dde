"""GCS301 and GCS302: optimizers in lists and dictionaries, and methods that reset and step."""

from __future__ import annotations

import re

import pytest

from gradcheck_lint.engine import lint_source

_HEADER = "import torch\nimport torch.nn as nn\n"
_MARK = re.compile(r"# !")

_MISTAKES = {
    "a dictionary of the file, gone through by a function that a loop calls": """
nets = {"actor": nn.Linear(3, 2), "critic": nn.Linear(3, 1)}
optimizers = {k: torch.optim.Adam(n.parameters()) for k, n in nets.items()}
def update(x):
    (nets["actor"](x).mean() + nets["critic"](x).mean()).backward()
    for o in optimizers.values():
        o.step()  # !
for _ in range(100):
    update(torch.randn(8, 3))
""",
    "optimizers that are handed in": """
def train(model, loader, optimizers):
    for x in loader:
        model(x).mean().backward()
        for optimizer in optimizers:
            optimizer.step()  # !
""",
    "one model after the other": """
def train(nets, loader):
    optimizers = [torch.optim.Adam(net.parameters()) for net in nets]
    for x in loader:
        for net, optimizer in zip(nets, optimizers):
            net(x).mean().backward()
            optimizer.step()  # !
""",
}
_CORRECT = {
    "each is reset": """
def train(nets, loader, optimizers):
    for x in loader:
        for net, optimizer in zip(nets, optimizers):
            optimizer.zero_grad()
            net(x).mean().backward()
            optimizer.step()
def update(model, optimizers, x):
    for optimizer in optimizers:
        optimizer.zero_grad()
    model(x).mean().backward()
    for optimizer in optimizers:
        optimizer.step()
def main(model, loader):
    optimizers = [torch.optim.Adam(model.parameters())]
    for x in loader:
        update(model, optimizers, x)
""",
    "each steps once": """
def train(nets, x, optimizers):
    for net, optimizer in zip(nets, optimizers):
        net(x).mean().backward()
        optimizer.step()
""",
    "each iteration makes its own": """
def train(make, x):
    for seed in range(3):
        for net in make(seed):
            optimizer = torch.optim.SGD(net.parameters(), lr=1)
            net(x).mean().backward()
            optimizer.step()
def train_pairs(make, x):
    for seed in range(3):
        for net, optimizer in make(seed):
            net(x).mean().backward()
            optimizer.step()
def once(model, x):
    optimizers = [torch.optim.SGD(model.parameters(), lr=1)]
    model(x).mean().backward()
    for o in optimizers:
        o.step()
def folds(make, data):
    for x in data:
        once(make(), x)
""",
}


@pytest.mark.parametrize("source", _MISTAKES.values(), ids=_MISTAKES)
def test_mistake_is_reported_on_exactly_the_marked_lines(source):
    text = _HEADER + source
    marked = [number for number, line in enumerate(text.splitlines(), 1) if _MARK.search(line)]
    assert [(code, line) for code, line in _found(text)] == [("GCS301", line) for line in marked]


@pytest.mark.parametrize("source", _CORRECT.values(), ids=_CORRECT)
def test_correct_look_alike_is_silent(source):
    assert _found(_HEADER + source) == []


def test_a_reset_that_is_told_leaves_the_step_untold():
    source = """\
import torch

class Trainer:
    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.Adam(model.parameters())

    def update(self):
        self.optimizer.zero_grad()
        self.optimizer.step()
"""
    assert _found(source) == [("GCS303", 10)]
    loop = """
    def fit(self, loader):
        for x in loader:
            self.model(x).mean().backward()
            self.update()
"""
    assert _found(source + loop) == [("GCS302", 9)]


def _found(text):
    findings = lint_source(text.encode(), "train.py")
    return [(found.code, found.location.line) for found in findings]


_KEYED = """\
import torch

class Trainer:
    def __init__(self, nets):
        self.nets = nets
        self.optimizers = {k: torch.optim.Adam(net.parameters()) for k, net in nets.items()}

    def step(self, real):
        self.optimizers["d"].zero_grad()
        self.nets["d"](real).mean().backward()
        self.optimizers["d"].step()
        self.optimizers["KEY"].zero_grad()
        self.nets["g"](real).mean().backward()
        self.optimizers["g"].step()

    def fit(self, loader):
        for real in loader:
            self.step(real)
"""


@pytest.mark.parametrize(("key", "expected"), [("g", []), ("d", [("GCS301", 14)])])
def test_optimizers_under_keys_of_a_dictionary(key, expected):
    findings = lint_source(_KEYED.replace("KEY", key).encode(), "trainer.py")
    assert [(found.code, found.location.line) for found in findings] == expected
