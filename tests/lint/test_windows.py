"""GCS202: states that go from window to window; leaves in scans (GCS107) and layers (GCS101)."""

from __future__ import annotations

import pytest

from gradcheck_lint.engine import lint_source

_WINDOWS = """\
import torch

def train(rnn, loader, optimizer, criterion):
    h, c = torch.zeros(4, 8), torch.zeros(4, 8)
    for xs, ys in loader:
        FIRST
        optimizer.zero_grad()
        loss = 0.0
        for x, y in zip(xs, ys):
            CALL
            loss = loss + criterion(out, y)
        loss.backward()
        optimizer.step()
        LAST
"""
_CALLS = ["out, h = rnn(x, h)", "out, (h, c) = rnn(x, (h, c))", "out, h = rnn(x, state=h)"]


@pytest.mark.parametrize("call", _CALLS)
def test_a_state_from_the_window_before(call):
    assert _found(call) == [("GCS202", "error")]


@pytest.mark.parametrize("call", _CALLS)
@pytest.mark.parametrize(
    ("first", "last"),
    [
        ("h, c = h.detach(), c.detach()", "pass"),
        ("h, c = torch.zeros(4, 8), torch.zeros(4, 8)", "pass"),
        ("pass", "h = h.detach(); c = c.detach()"),
        ("pass", "h.detach_(); c.detach_()"),
        ("h, c = repackage((h, c))", "pass"),
        ("if ys is None: h = c = None", "pass"),
    ],
)
def test_a_state_that_begins_anew(call, first, last):
    assert _found(call, first=first, last=last) == []


def test_a_state_that_is_cut_at_each_step():
    assert _found("out, h = rnn(x, h.detach())") == []
    assert _found("out, h = rnn(x, h); h = h.detach()") == []


_MASKED = """\
import torch
from torch import nn

class Masked(nn.Linear):
    def __init__(self, width):
        super().__init__(width, width)
        self.register_buffer("mask", torch.ones(width, width))

    def forward(self, x):
        WRITE
        return nn.functional.linear(x, self.weight, self.bias)
"""


@pytest.mark.parametrize(
    ("write", "expected"),
    [
        ("self.weight *= self.mask", ["GCS101"]),
        ("self.weight.mul_(self.mask)", ["GCS101"]),
        ("weight = self.weight * self.mask", []),
        ("self.weight.data *= self.mask", []),
    ],
)
def test_the_weight_of_a_layer_of_its_own_kind(write, expected):
    findings = lint_source(_MASKED.replace("WRITE", write).encode(), "masked.py")
    assert [found.code for found in findings if found.code != "GCS105"] == expected


def _found(call, *, first="pass", last="pass"):
    source = _WINDOWS.replace("CALL", call).replace("FIRST", first).replace("LAST", last)
    return [(found.code, found.severity.value) for found in lint_source(source.encode(), "w.py")]


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        ("torch.rand(3, requires_grad=True)", [("GCS107", "error")]),
        ("torch.nn.Parameter(torch.rand(3))", [("GCS107", "error")]),
        ("torch.rand(3)", []),
    ],
)
def test_a_scan_with_a_leaf(made, expected):
    source = f"""\
import torch

def scan():
    w = {made}
    h = torch.zeros(11, 3)
    for t in range(1, 11):
        h[t] = w * h[t - 1]
    h.sum().backward()
"""
    findings = lint_source(source.encode(), "scan.py")
    found = [(each.code, each.severity.value) for each in findings]
    assert [each for each in found if each[0] == "GCS107"] == expected
