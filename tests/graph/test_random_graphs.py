"""Properties of graphs that torch has built from random programs."""

from __future__ import annotations

import re

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

import gradcheck_suite as gs
from gradcheck_suite.graph.layout.outline import Fold, Reference, Unfinished, outline
from gradcheck_suite.graph.render.text import graph_to_text

UNARY = (torch.exp, torch.sin, torch.relu, lambda t: t * t, lambda t: t + 1)
BINARY = (torch.mul, torch.add, torch.maximum)
STEPS = st.lists(
    st.tuples(st.integers(0, 7), st.integers(0, 1_000), st.integers(0, 1_000)),
    min_size=1,
    max_size=40,
)


def run(steps):
    """Build values from one another; each step picks an op and what it is applied to."""
    values = [torch.full((2,), 0.5, requires_grad=True) for _ in range(2)]
    for op, first, second in steps:
        left, right = values[first % len(values)], values[second % len(values)]
        values.append(UNARY[op](left) if op < len(UNARY) else BINARY[op - len(UNARY)](left, right))
    return values[-1], values[len(values) // 2]


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_nodes_and_edges_are_those_of_torch(steps):
    roots = run(steps)
    nodes, edges = set(), 0
    pending = [torch.autograd.graph.get_gradient_edge(root).node for root in roots]
    while pending:
        node = pending.pop()
        if node not in nodes:
            nodes.add(node)
            targets = [target for target, _ in node.next_functions if target is not None]
            edges += len(targets)
            pending.extend(targets)

    graph = gs.trace_graph(roots)

    assert len(graph.nodes) == len(nodes)
    assert len(graph.edges) == edges
    assert all(edge.source < edge.target for edge in graph.edges), "ids follow backward"


@settings(max_examples=30, deadline=None)
@given(STEPS)
def test_same_program_same_graph(steps):
    first, second = (gs.trace_graph(run(steps)) for _ in range(2))

    assert [(node.id, node.op) for node in first.nodes] == [
        (node.id, node.op) for node in second.nodes
    ]
    assert first.edges == second.edges
    assert str(first) == str(second)


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_outline_draws_every_node_once_and_every_edge(steps):
    graph = gs.trace_graph(run(steps))

    lines = list(outline(graph, limit=None))

    drawn = [line.content.id for line in lines if isinstance(line.content, gs.graph.Node)]
    references = sum(isinstance(line.content, Reference) for line in lines)
    assert sorted(drawn) == [node.id for node in graph.nodes]
    # An edge leads to a node's own line or to a reference; so does each root.
    assert len(drawn) + references == len(graph.edges) + len(graph.roots)


@settings(max_examples=100, deadline=None)
@given(STEPS, st.integers(1, 6))
@example([(0, 0, 0), (3, 0, 0), (0, 0, 0), (5, 0, 1), *[(0, 0, 0)] * 4, (5, 2, 153)], 1).via(
    "a drawing that ends at a node"
)
def test_a_folded_outline_accounts_for_every_node(steps, limit):
    graph = gs.trace_graph(run(steps))

    contents = [line.content for line in outline(graph, limit=limit)]

    drawn = sum(isinstance(content, gs.graph.Node) for content in contents)
    hidden = sum(item.count for item in contents if isinstance(item, (Fold, Unfinished)))
    assert drawn + hidden == len(graph.nodes)


@settings(max_examples=30, deadline=None)
@given(STEPS, st.sampled_from([40, 80, 120]))
def test_text_stays_within_its_width(steps, width):
    text = graph_to_text(gs.trace_graph(run(steps)), width=width)

    assert max(map(len, text.splitlines())) <= width
    for reference in re.findall(r"→ see #(\d+)", text):
        assert re.search(rf"#{reference} [A-Za-z]", text)


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_small_limits_on_one_long_run(limit):
    y = torch.ones(1, requires_grad=True)
    for _ in range(50):
        y = y.sin()

    contents = [line.content for line in outline(gs.trace_graph(y), limit=limit)]

    (fold,) = (content for content in contents if isinstance(content, Fold))
    assert fold.period == 1
    assert sum(isinstance(content, gs.graph.Node) for content in contents) + fold.count == 51
