"""What an attribute is that a class moves to a device: a module is itself, a tensor is another."""

from __future__ import annotations

import pytest

from gradcheck_lint.engine import lint_source

_CLASS = """\
import torch
from torch import nn

class Shift:
    def __init__(self, device):
        self.held = MADE
        MOVED

    def change(self):
        self.held += 1.0
"""


@pytest.mark.parametrize(
    ("moved", "found"),
    [
        ("pass", ["GCS101"]),
        ("self.held = self.held.cuda()", []),
        ("self.held = self.held.to(device)", []),
    ],
)
def test_a_leaf_that_is_moved_may_be_a_leaf_no_more(moved, found):
    source = _CLASS.replace("MADE", "torch.zeros(3, requires_grad=True)").replace("MOVED", moved)
    assert [finding.code for finding in lint_source(source.encode(), "a.py")] == found
