"""Which nodes a backward asks for the marks of earlier ones."""

from __future__ import annotations

import pytest
import torch

from gradcheck_suite.auditing.run_state import Clock
from gradcheck_suite.auditing.saved_tensors import graph_lifetime as generations
from gradcheck_suite.auditing.saved_tensors.graph_lifetime import Generations


def opened(known, index, root):
    return known.open(index, [root.grad_fn], None, 0, {})


@pytest.mark.parametrize("most", [0, 50_000])
def test_a_graph_on_top_of_a_marked_one_is_known(monkeypatch, most):
    monkeypatch.setattr(generations, "_MOST_NUMBERS", most)
    known = Generations(Clock())
    middle = torch.ones(2, requires_grad=True).exp().sin()
    first = opened(known, 0, middle)
    second = opened(known, 1, middle * 2)
    assert [reference() for reference in second.reused] == [first]


def test_an_older_graph_that_bears_no_mark_is_not_asked(monkeypatch):
    asked = []
    original = generations.node_metadata

    def metadata(node):
        asked.append(node.name())
        return original(node)

    monkeypatch.setattr(generations, "node_metadata", metadata)
    known = Generations(Clock())
    older = torch.ones(2, requires_grad=True).exp().sin().cos()
    newer = torch.ones(2, requires_grad=True).exp()
    opened(known, 0, newer)
    asked.clear()
    opened(known, 1, older)
    # The root and the node next to the leaf, to be marked themselves.
    assert asked == ["CosBackward0", "ExpBackward0"]
