from __future__ import annotations

import gc

from gradcheck_lint.engine import lint_source

_SOURCE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(1))
        self.w += 1

def train(model, loader, optimizer):
    for x in loader:
        model(x).mean().backward()
        optimizer.step()
""" + "".join(f"\nvalue_{n} = {{'a': [{n}, {n}], 'b': ({n}, {n})}}" for n in range(200))


def test_a_linted_file_leaves_no_tree_for_the_garbage_collector():
    lint_source(_SOURCE.encode(), "x.py")
    gc.collect()
    gc.disable()
    try:
        assert {finding.code for finding in lint_source(_SOURCE.encode(), "x.py")} == {
            "GCS101",
            "GCS301",
        }
        gc.disable()
        assert gc.collect() < 2_000
    finally:
        gc.enable()
