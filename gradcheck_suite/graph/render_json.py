"""Write a graph as JSON, with the same ids for the same graph."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

from gradcheck_suite._version import __version__

if TYPE_CHECKING:
    from gradcheck_suite.findings import JSON
    from gradcheck_suite.graph.model import AutogradGraph

__all__ = ["graph_to_json"]

_SCHEMA = 1


def graph_to_json(graph: AutogradGraph) -> str:
    """Return the nodes, edges, roots and figures of ``graph``, without the findings."""
    document: dict[str, JSON] = {
        "schema": _SCHEMA,
        "tool": "gradcheck-suite graph",
        "version": __version__,
        "roots": [dataclasses.asdict(root) for root in graph.roots],
        "ignored": graph.ignored,
        "nodes": [
            dataclasses.asdict(node) | {"saved_bytes": node.saved_bytes} for node in graph.nodes
        ],
        "edges": [dataclasses.asdict(edge) for edge in graph.edges],
        "summary": dict(graph.report.summary),
        "not_covered": graph.report.not_covered,
    }
    return json.dumps(document, indent=1, ensure_ascii=True) + "\n"
