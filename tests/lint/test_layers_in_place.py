"""GCS103 and GCS108: layers on self that overwrite what backward needs."""

from __future__ import annotations

import pytest

from gradcheck_lint.engine import lint_source

_BLOCK = """\
import torch
import torch.nn.functional as F
from torch import nn

class Block(nn.Module):
    def __init__(self, width, rate):
        super().__init__()
        self.first = nn.Linear(width, width)
        self.second = nn.Linear(width, width, bias=True)
        self.norm = nn.BatchNorm1d(width)
        self.act = nn.ReLU(inplace=True)
        self.leaky = nn.LeakyReLU(0.1, True)
        self.short = nn.ReLU(True)
        self.drop = nn.Dropout(rate, inplace=True)
        self.plain = nn.ReLU()

    def forward(self, x):
        BODY
"""


@pytest.mark.parametrize(
    "body",
    [
        "h = self.first(x); y = self.second(h); return y + self.act(h)",
        "h = self.first(x); y = self.second(h); h = self.short(h); return y + h",
        "h = self.first(x); y = self.norm(h); return y * self.leaky(h)",
        "y = self.first(x); x = self.act(x); return x + y",
        "h = self.first(x); y = h * h; h = self.act(h); return y + h",
    ],
)
def test_what_an_operation_has_saved(body):
    assert _found(body) == [("GCS103", "warning")]


@pytest.mark.parametrize(
    "body",
    [
        "h = torch.tanh(self.first(x)); return self.act(h)",
        "h = self.first(x).sigmoid(); return self.short(h)",
        "return self.leaky(self.first(x).softmax(-1))",
        "return self.act(torch.sigmoid(self.first(x)))",
    ],
)
def test_what_an_operation_has_returned_and_saved(body):
    assert _found(body) == [("GCS108", "error")]


@pytest.mark.parametrize(
    "body",
    [
        "y = self.act(self.norm(self.first(x))); y = self.second(y); return self.act(y + x)",
        "h = self.act(self.first(x)); return self.second(h) + h",
        "h = self.first(x); y = self.second(h); return y + self.plain(h)",
        "h = self.first(x); y = self.second(h.clone()); return y + self.act(h)",
        "h = self.first(x); y = h + 1; return y + self.act(h)",
        "h = self.first(x); h += x; h = self.act(h); return self.second(h)",
        "h = torch.tanh(self.first(x)); return self.plain(h)",
        "h = torch.tanh(self.first(x)) + x; return self.act(h)",
        "h = self.leaky(self.first(x)); return h",
        "h = self.first(x); y = self.second(h).detach(); return self.second(y) + self.act(h)",
        "h = torch.tanh(self.first(x)); return self.drop(h.clone())",
    ],
)
def test_layers_in_place_that_overwrite_nothing_of_use(body):
    assert _found(body) == []


def _found(body):
    findings = lint_source(_BLOCK.replace("BODY", body).encode(), "block.py")
    return [(found.code, found.severity.value) for found in findings]
