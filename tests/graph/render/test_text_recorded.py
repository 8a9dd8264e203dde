"""What the terminal shows of a recorded forward and backward."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import gradcheck_suite as gs
from gradcheck_suite.graph.layout.module_summary import module_rows
from gradcheck_suite.graph.render.text import graph_to_text


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.last = nn.Linear(8, 2)

    def forward(self, x):
        hidden = self.first(x).relu()
        return self.last(hidden + hidden.sin())


@pytest.fixture(scope="module")
def graph():
    torch.manual_seed(0)
    model = Net()
    with gs.record(model, source=True, backward=True) as recording:
        loss = model(torch.randn(3, 4)).sum()
        loss.backward()
    return recording.graph


def words(text):
    return " ".join(text.split())


def test_modules_and_lines_stand_above_their_nodes(graph):
    lines = graph_to_text(graph).splitlines()
    source = f"{__name__.rpartition('.')[2]}.py:"

    def above(op):
        place = next(place for place, line in enumerate(lines) if op in line)
        return next(line for line in reversed(lines[:place]) if not line.startswith((" ", "#")))

    assert above("#2 AddmmBackward0").startswith("in last, ")
    assert source in above("#2 AddmmBackward0")
    assert above("ReluBackward0").startswith("in Net, ")
    assert sum(line.startswith("in first, ") for line in lines) == 1


def test_gradients_stand_beside_their_nodes(graph):
    text = words(graph_to_text(graph, width=200))

    assert "bias (2,) float32 parameter last.bias gradient 4.24" in text
    edges = [edge for edge in graph.edges if graph.node(edge.target).op == "ReluBackward0"]
    assert len(edges) == 2
    assert f"gradients {edges[0].gradient.norm:.3g}" in text
    assert "freed by" not in text, "the first lines say so once"
    assert "A backward has already run and freed the saved tensors" in text


def test_bad_zero_and_missing_gradients_are_told():
    class Drops(torch.autograd.Function):
        @staticmethod
        def forward(_ctx, x, y):
            return x + y

        @staticmethod
        def backward(_ctx, gradient):
            return gradient, None

    x, y, z = (torch.zeros(4, requires_grad=True) for _ in range(3))
    with gs.record(backward=True) as recording:
        mask = torch.tensor([0.0, 1.0, 1.0, 1.0])
        (Drops.apply(x.sqrt(), y * 2) + z * 0 + z * mask).sum().backward()
    text = words(str(recording.graph))

    assert "gradient infinity" in text
    assert "gradient none" in text
    assert "gradients 1.73 (25 % zeros), 0" in text


def test_the_modules_are_summed_up(graph):
    rows = {row.name: row for row in module_rows(graph, rows=20)}

    assert set(rows) == {"first", "last", "Net", ""}
    assert rows["first"].ops == 2
    assert rows["first"].parameters == 2
    assert sum(row.saved_bytes for row in rows.values()) == graph.saved_bytes
    assert sum(row.ops + row.parameters for row in rows.values()) == len(graph.nodes)
    into = [
        edge.gradient.norm
        for edge in graph.edges
        if (leaf := graph.node(edge.target).leaf) and leaf.name.startswith("first.")
    ]
    assert rows["first"].norm == pytest.approx(sum(norm**2 for norm in into) ** 0.5)
    table = graph_to_text(graph).split("\n\n")[3].splitlines()
    assert table[0].split() == ["module", "ops", "parameters", "saved", "gradient"]
    assert table[1].split()[:3] == ["Net", "3", "first"] or table[1].split()[0] == "Net"


def test_a_shared_parameter_has_a_bound():
    model = nn.Linear(2, 2, bias=False)
    with gs.record(model, backward=True) as recording:
        model(model(torch.ones(1, 2))).sum().backward()
    (row, *_) = module_rows(recording.graph, rows=20)

    assert row.is_bound
    assert row.norm >= model.weight.grad.norm() * (1 - 1e-6)
    assert f"≤ {row.norm:.3g}" in str(recording.graph)
    assert "<= " in graph_to_text(recording.graph, encoding="ascii")


def test_many_modules_are_summed_up_at_the_level_that_fits():
    model = nn.Sequential(*(nn.Sequential(nn.Linear(2, 2), nn.Tanh()) for _ in range(15)))
    with gs.record(model) as recording:
        loss = model(torch.ones(1, 2)).sum()
    graph = recording.trace_graph(loss, model=model)
    assert [row.name for row in module_rows(graph, rows=20)][:2] == ["0", "1"]

    wide = nn.Sequential(*(nn.Linear(2, 2) for _ in range(30)))
    with gs.record(wide) as recording:
        loss = wide(torch.ones(1, 2)).sum()
    text = str(recording.trace_graph(loss, model=wide))
    assert "… 11 other modules" in text


@pytest.mark.parametrize("width", [60, 80, 120])
def test_it_stays_within_the_columns(graph, width):
    assert max(map(len, graph_to_text(graph, width=width).splitlines())) <= width
