"""Lines say what they carry, each for itself, also where several lead to one box."""

from __future__ import annotations

import re

import torch
from torch import nn

import gradcheck_suite as gs
from gradcheck_suite.graph._view import draw, picture
from gradcheck_suite.graph.render_text import graph_to_text


def mixed():
    """A leaf that gets zeros by four ways and NaN by a fifth."""
    x = torch.zeros(4, 3, requires_grad=True)
    with gs.record(backward=True) as recording:
        norms = x.pow(2).sum(1).sqrt()
        torch.stack([norms[row] * x[row] for row in range(4)]).sum().backward()
    return recording.graph


def carried(graph):
    drawing = draw(picture(graph))
    return {(wire.target, wire.state): wire for wire in drawing.wires}


def test_zeros_and_nan_that_lead_to_one_leaf():
    graph = mixed()
    (leaf,) = graph.leaves
    found = carried(graph)

    assert ("node", leaf.id) in {target for target, _ in found}
    assert {state for target, state in found if target == ("node", leaf.id)} == {"bad", "zero"}
    power = next(node for node in graph.nodes if node.op == "PowBackward0")
    box = {box.item: box for box in draw(picture(graph)).boxes}["node", power.id]
    bad = found[("node", leaf.id), "bad"]
    starts = {segment[:2] for segment in bad.segments} - {s[2:] for s in bad.segments}
    assert starts == {(box.x + box.label.width / 2, box.y + box.label.height)}


def test_the_picture_has_each_by_itself():
    text = mixed()._repr_html_()
    kinds = re.findall(r'<path class="(w[^"]*)"', text)

    # Sqrt to Sum, Sum to Pow, Pow to the leaf.
    assert kinds.count("w bad") == 3
    assert kinds.count("w zero") >= 5
    assert kinds.count("w") >= 2


def test_a_closed_group_shows_what_flows_into_it():
    class Root(nn.Module):
        def forward(self, x):
            return x.sqrt().sin()

    model = nn.Sequential(Root(), nn.Tanh())
    x = torch.zeros(3, requires_grad=True)
    with gs.record(model, backward=True) as recording:
        model(x * 1).sum().backward()
    graph = recording.graph
    shown = picture(graph)
    drawing = draw(shown, ["open", *["closed"] * (len(shown.states) - 1)])
    states = {wire.target: wire.state for wire in drawing.wires}
    (leaf,) = graph.leaves

    assert states["node", leaf.id] == "bad"
    assert "" in {state for target, state in states.items() if target[0] == "group"}


def test_text_names_what_is_not_finite_first():
    lines = graph_to_text(mixed(), width=120).splitlines()
    (leaf,) = [line for line in lines if "leaf tensor" in line]

    assert "gradients NaN, 0, 0, 0 and 1 more" in leaf
