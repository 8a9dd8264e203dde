from __future__ import annotations

import pytest

from gradcheck_lint.engine import lint_source

_HEAD = """
import torch
from torch import nn
from .blocks import Conv2d, ResnetBlock, Resize, get_down_block

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
"""

_RUN = """
    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x
"""


def _reported(body, *, runs=True):
    lines = "".join(f"        {line}\n" for line in body.splitlines())
    source = f"{_HEAD}\nclass Net(nn.Module):\n    def __init__(self):\n{lines}"
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
    ],
)
def test_lists_without_weights_or_registered_otherwise_are_left_alone(body):
    assert _reported(body) == []


def test_a_list_of_blocks_that_nobody_calls_is_left_alone():
    assert _reported("self.layers = [ResnetBlock(1)]", runs=False) == []
