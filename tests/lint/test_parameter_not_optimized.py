"""Layers that are put into a model after its optimizer was made, where nobody steps in sight."""

from __future__ import annotations

import pytest

from gradcheck_lint.engine import lint_source

_HEAD = "import copy\nimport torch\nfrom torch import nn, optim\n"

_NET = """
class Net(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.body = nn.Linear(4, 4)
        self.opt = optim.SGD(self.parameters(), lr=0.1)
"""

_MISTAKES = {
    "and its weights are drawn, and rates are read": """
def train(m, n, loader):
    opt = optim.SGD(m.parameters(), lr=0.1)
    m.fc = nn.Linear(8, n)  # !
    nn.init.xavier_uniform_(m.fc.weight)
    for x in loader:
        opt.zero_grad()
        m(x).sum().backward()
        opt.step()
        print(opt.param_groups[0]["lr"])
""",
    "returned with the model": """
def build(m, n):
    opt = torch.optim.SGD(m.parameters(), lr=0.1)
    m.fc = nn.Linear(m.fc.in_features, n)  # !
    return m, opt
""",
    "made of the layer that is replaced": """
def build(m, n):
    opt = optim.Adam(m.fc.parameters())
    m.fc = nn.Linear(m.fc.in_features, n)  # !
    return {"model": m}, opt
""",
    "of the layer, and steps": """
def train(m, loader):
    opt = optim.Adam(m.fc.parameters())
    m.fc = nn.Linear(8, 8)  # !
    for x in loader:
        opt.zero_grad()
        m(x).sum().backward()
        opt.step()
""",
    "in the constructor of a trainer": """
class Trainer:
    def __init__(self, net, n):
        self.net = net
        self.opt = optim.Adam(net.parameters())
        self.net.fc = nn.Linear(5, n)  # !

    def step(self, x):
        self.opt.zero_grad()
        self.net(x).sum().backward()
        self.opt.step()
""",
    "in the constructor of a model": _NET
    + """\
        self.head = nn.Linear(4, n)  # !

    def forward(self, x):
        return self.head(self.body(x))
""",
}

_CORRECT = {
    "a weight of the layer is frozen": """
def build(m, n):
    opt = optim.SGD(m.parameters(), lr=0.1)
    m.probe = nn.Linear(4, n)
    m.probe.weight.requires_grad_(False)
    return m, opt
""",
    "the optimizer comes last": """
def build(m, n):
    m.fc = nn.Linear(m.fc.in_features, n)
    opt = optim.SGD(m.parameters(), lr=0.1)
    return m, opt
""",
    "of another layer": """
def build(m, n):
    opt = optim.SGD(m.body.parameters(), lr=0.1)
    m.fc = nn.Linear(5, n)
    return m, opt
""",
    "an optimizer of its own": _NET
    + """\
        self.head = nn.Linear(4, n)
        self.head_opt = optim.SGD(self.head.parameters(), lr=0.1)
""",
    "an optimizer of its own in another method": _NET
    + """\
        self.head = nn.Linear(4, n)

    def probe(self):
        return optim.SGD(self.head.parameters(), lr=0.1)
""",
    "frozen": _NET
    + """\
        self.target = nn.Linear(4, 4)
        self.target.requires_grad_(False)
""",
    "a copy": _NET
    + """\
        self.target = nn.Linear(4, 4)
        self.target.load_state_dict(self.body.state_dict())
""",
    "made again": _NET
    + """\
        self.head = nn.Linear(4, n)
        self.opt = optim.SGD(self.parameters(), lr=0.1)
""",
    "added to its groups": """
def build(m, n):
    opt = optim.SGD(m.parameters(), lr=0.1)
    m.head = nn.Linear(4, n)
    opt.param_groups[0]["params"] += list(m.head.parameters())
    return m, opt
""",
    "put back": """
def probe(m, n, x):
    opt = optim.SGD(m.parameters(), lr=0.1)
    old = m.head
    m.head = nn.Linear(4, n)
    y = m(x)
    m.head = old
    return opt, y
""",
    "not kept": """
def probe(m, n):
    opt = optim.SGD(m.parameters(), lr=0.1)
    groups = len(opt.state)
    m.head = nn.Linear(4, n)
    return m, groups
""",
    "without weights": """
def build(m):
    opt = optim.SGD(m.parameters(), lr=0.1)
    m.act = nn.ReLU()
    return m, opt
""",
}


def _found(source: str) -> list[tuple[str, int]]:
    found = lint_source((_HEAD + source).encode(), "sample.py")
    return [(f.code, f.location.line) for f in found if f.location is not None]


@pytest.mark.parametrize("source", _MISTAKES.values(), ids=_MISTAKES)
def test_a_layer_that_comes_too_late(source: str) -> None:
    lines = (_HEAD + source).split("\n")
    assert _found(source) == [("GCS307", 1 + next(i for i, x in enumerate(lines) if "# !" in x))]


@pytest.mark.parametrize("source", _CORRECT.values(), ids=_CORRECT)
def test_what_is_right(source: str) -> None:
    assert _found(source) == []
