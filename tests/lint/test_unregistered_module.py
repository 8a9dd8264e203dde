from __future__ import annotations

import pytest

from gradcheck_lint.engine import lint_source

_HEAD = """
import copy
import torch
from torch import nn
from .blocks import Conv2d, ResnetBlock, Resize, get_down_block
from torch_geometric.nn import GroupAddRev, MeanAggregation, MessagePassing

class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(1, 1)

class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = Cell()

def make():
    return nn.Sequential(nn.Linear(1, 1), nn.ReLU())

def clones(module, count):
    return [copy.deepcopy(module) for _ in range(count)]

def registered_clones(module, count):
    return nn.ModuleList([copy.deepcopy(module) for _ in range(count)])

def made(count):
    layers = []
    for _ in range(count):
        layers.append(make())
    return layers

class EdgeLayer(MessagePassing):
    def forward(self, x):
        return self.propagate(x)

class Step:
    def __call__(self, x):
        return x
"""

_RUN = """
    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x
"""


def _reported(body, *, runs=True):
    lines = "".join(f"        {line}\n" for line in body.splitlines())
    header = "class Net(nn.Module):\n    def __init__(self, layer, teacher, other, deep):\n"
    source = f"{_HEAD}\n{header}{lines}"
    findings = lint_source((source + (_RUN if runs else "")).encode(), "net.py")
    return [(finding.code, finding.severity.value) for finding in findings]


@pytest.mark.parametrize(
    "body",
    [
        "self.layers = [Outer() for _ in range(2)]",
        "self.layers = []\nself.layers.append(make())",
        "layers = []\nlayers += [nn.Linear(1, 1)]\nself.layers = [nn.Sequential(*layers)]",
        "self.layers = [nn.Linear(1, 1), nn.ReLU()]",
        "self.layers = None\nself.layers = []\nself.layers.append(nn.Linear(1, 1))",
        "self.layers = clones(nn.Linear(1, 1), 2)",
        "self.layers = clones(count=2, module=make())",
        "self.layers = made(2)",
        "self.layers = dict(a=nn.Linear(1, 1), b=nn.Linear(1, 1))",
        "self.layers = list(map(lambda i: nn.Linear(i, i), range(2)))",
        "layer = lambda i: nn.Linear(i, 1)\nself.layers = [layer(i) for i in range(2)]",
        "layer = nn.Linear(1, 1)\nself.layers = [copy.deepcopy(layer) for _ in range(2)]",
        (
            "if deep:\n    self.layers = []\n    self.layers.append(nn.Linear(1, 1))\n"
            "else:\n    self.layers = nn.Linear(1, 1)"
        ),
    ],
)
def test_lists_that_hold_weights_are_errors(body):
    assert _reported(body) == [("GCS404", "error")]


@pytest.mark.parametrize(
    "body",
    [
        "self.layers = [Conv2d(1, 1) for _ in range(2)]",
        "self.layers = []\nblock = ResnetBlock(1)\nself.layers.append(block)",
        "self.layers = [get_down_block(i) for i in range(2)]",
        "self.layers = [copy.deepcopy(layer) for _ in range(2)]",
        "self.layers = []\nfor _ in range(2):\n    self.layers.append(copy.deepcopy(layer))",
        "self.layers = [GroupAddRev(layer) for _ in range(2)]",
        "self.layers = [EdgeLayer(1) for _ in range(2)]",
    ],
)
def test_layers_of_other_files_are_likely(body):
    assert _reported(body) == [("GCS404", "warning")]


@pytest.mark.parametrize(
    "body",
    [
        "self.layers = [Resize(2), Resize(3)]",
        "self.layers = [nn.ReLU(), nn.Dropout(0.1)]",
        "self.layers = []\nlayer = nn.Linear(1, 1)\nself.first = layer\nself.layers.append(layer)",
        "self.layers = nn.ModuleList([Outer()])",
        "self.layers = []\nlayer = make()\nself.add_module('a', layer)\nself.layers.append(layer)",
        "self.layers = registered_clones(nn.Linear(1, 1), 2)",
        "self.layers = clones(nn.ReLU(), 2)",
        "self.layers = clones(layer, 2)",
        "self.layers = [copy.deepcopy(layer)]",
        "self.layers = [copy.deepcopy(teacher) for _ in range(2)]",
        "self.layers = [copy.deepcopy(layer) for layer in other]",
        "self.layers = [MeanAggregation(1), MeanAggregation(2)]",
        "self.layers = [Step() for _ in range(2)]",
        "self.layers = dict(a=1, b=2)",
        "self.layers = list(map(lambda i: i + 1, range(2)))",
        "self.layers = [nn.Linear(1, 1)]\nself.layers = nn.ModuleList(self.layers)",
        "self.layers = dict(a=nn.Linear(1, 1))\nself.a = nn.ModuleList(list(self.layers.values()))",
        "self.layers = {'a': nn.Linear(1, 1)}\nself.all = nn.ModuleList(self.layers.values())",
        "self.layers = [nn.Linear(1, 1)]\nself.all = nn.Sequential(*reversed(self.layers))",
        (
            "if deep:\n    self.layers = []\n    self.layers.append(nn.Linear(1, 1))\n"
            "else:\n    self.layers = []\nself.layers = nn.ModuleList(self.layers)"
        ),
    ],
)
def test_lists_without_weights_or_registered_otherwise_are_left_alone(body):
    assert _reported(body) == []


@pytest.mark.parametrize(
    "use",
    [
        "self.count = len(list(self.layers.values()))",
        "self.names = nn.ModuleList(self.layers.keys())",
        "self.all = nn.ModuleList(self.others.values())",
    ],
)
def test_dict_whose_layers_go_nowhere_is_reported(use):
    body = f"self.layers = {{'a': nn.Linear(1, 1)}}\nself.others = {{}}\n{use}"
    assert _reported(body) == [("GCS404", "error")]


def test_a_list_of_blocks_that_nobody_calls_is_left_alone():
    assert _reported("self.layers = [ResnetBlock(1)]", runs=False) == []


@pytest.mark.parametrize(
    ("call", "reported"), [("self.build(2)", ["GCS404"]), ("self.reset = self.build", []), ("", [])]
)
def test_a_list_made_by_a_method_that_the_constructor_calls(call, reported):
    source = f"""{_HEAD}
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        {call}

    def build(self, depth):
        self.layers = [nn.Linear(1, 1) for _ in range(depth)]
{_RUN}"""
    assert [found.code for found in lint_source(source.encode(), "net.py")] == reported


@pytest.mark.parametrize(
    ("assignment", "expected"),
    [
        ("self.layers, self.seen = [nn.Linear(1, 1) for _ in range(3)], {}", ["self.layers"]),
        ("self.depth, self.layers = 3, [nn.Linear(1, 1)]", ["self.layers"]),
        (
            "self.heads, self.last = {'a': nn.Linear(1, 1)}, [nn.Linear(1, 1)]",
            ["self.heads", "self.last"],
        ),
        ("self.a, self.b = [], []\n        self.b.append(nn.Linear(1, 1))", ["self.b"]),
        ("self.a, self.b = [nn.Linear(1, 1), nn.Linear(1, 1)]", []),
        ("self.a, self.b = nn.ModuleList([nn.Linear(1, 1)]), []", []),
        ("self.a, self.b = [nn.ReLU()], {}", []),
        ("self.a, *self.b = [nn.Linear(1, 1)], {}, []", []),
        ("self.a, self.b = [nn.Linear(1, 1)], {}; self.all = nn.ModuleList(self.a)", []),
    ],
)
def test_containers_that_are_assigned_side_by_side(assignment, expected):
    source = f"""\
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        {assignment}
"""
    findings = lint_source(source.encode(), "net.py")
    assert [found.code for found in findings] == ["GCS404"] * len(expected)
    assert [found.message.split("`")[1] for found in findings] == expected
