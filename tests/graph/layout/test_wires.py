"""Lines say what they carry, each for itself, also where several lead to one box."""

from __future__ import annotations

import re

import torch
from torch import nn

import gradcheck_suite as gs
from gradcheck_suite.graph.layout.view import draw, picture
from gradcheck_suite.graph.render.text import graph_to_text


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


def beside_taller():
    """Lines that start and end beside frames that are taller than the box at their end."""
    model = nn.ModuleList([nn.Linear(4, 3) for _ in range(6)])
    with gs.record(model) as recording:
        x = torch.randn(2, 4)
        parts = [part(x) for part in model]
        given = {"first": parts[0].sum(), "second": parts[1] * 2, "all": sum(map(torch.sum, parts))}
    return recording.trace_graph(given, model=model)


def points(x1, y1, x2, y2):
    """Follow a piece as the picture draws it: its curve has its middle at half the height."""
    for step in range(1, 20):
        t = step / 20
        u = 1 - t
        yield (
            (u**3 + 3 * u**2 * t) * x1 + (3 * u * t**2 + t**3) * x2,
            u**3 * y1 + 3 * (u**2 * t + u * t**2) * (y1 + y2) / 2 + t**3 * y2,
        )


def test_no_line_runs_through_a_box():
    drawing = draw(picture(beside_taller()))
    crossed = [
        (wire.target, box.item)
        for wire in drawing.wires
        for segment in wire.segments
        for x, y in points(*segment)
        for box in drawing.boxes
        if box.x < x < box.x + box.label.width and box.y < y < box.y + box.label.height
    ]
    assert crossed == []
