"""Write a graph in Graphviz' DOT language, modules as clusters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradcheck_suite.graph.layout.grouping import group
from gradcheck_suite.graph.layout.labels import label_node, marked_nodes
from gradcheck_suite.graph.render.stylesheet import style_of
from gradcheck_suite.reporting.text import visible

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_suite.graph.layout.grouping import Groups
    from gradcheck_suite.graph.layout.labels import Label
    from gradcheck_suite.graph.model import AutogradGraph

__all__ = ["graph_to_dot"]


def graph_to_dot(graph: AutogradGraph) -> str:
    """Return the whole graph as a DOT document that ends with a newline.

    Gradients flow along the edges, from the roots down to the leaves.
    """
    return "\n".join(_lines(graph, group(graph, fold=False))) + "\n"


def _lines(graph: AutogradGraph, groups: Groups) -> Iterator[str]:
    marks = marked_nodes(graph)
    labels = [
        label_node(node, mark=marks.get(node.id), within=groups.module_round(node, graph))
        for node in graph.nodes
    ]
    yield "digraph autograd {"
    yield '  graph [rankdir=TB, fontname="Helvetica", fontsize=10, compound=true];'
    yield '  node [shape=box, style="rounded,filled", fontname="Helvetica",'
    yield "    fontsize=10, margin=0.08, height=0.2];"
    yield '  edge [color="#7b8794", arrowsize=0.6];'
    # Clusters within one another, without recursion: (group, whether it ends).
    pending = [(0, False)]
    while pending:
        number, ends = pending.pop()
        indent = "  " * len(groups.path(number))
        if ends:
            yield f"{indent[:-2]}}}"
            continue
        entry = groups.groups[number]
        if number:
            yield f"{indent[:-2]}subgraph cluster_{number} {{"
            yield f'{indent}label="{_quoted(entry.title)}"; color="#8795a1"; style=rounded;'
            pending.append((number, True))
        for node_id in entry.nodes:
            yield f"{indent}{_node(node_id, labels[node_id - 1])}"
        pending += [(child, False) for child in reversed(entry.children)]
    for edge in graph.edges:
        bad = edge.gradient is not None and edge.gradient.non_finite
        attributes = ' [color="#c2410c", penwidth=2, style=dashed]' if bad else ""
        yield f"  n{edge.source} -> n{edge.target}{attributes};"
    yield "}"


def _node(node_id: int, label: Label) -> str:
    words = "\\n".join(map(_quoted, (label.title, *label.lines)))
    fill = style_of("rect", parent=f"b {' '.join(label.classes)}")["fill"]
    return f'n{node_id} [label="{words}", fillcolor="{fill}"];'


def _quoted(text: str) -> str:
    return visible(text).replace("\\", "\\\\").replace('"', '\\"')
