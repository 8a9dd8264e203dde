"""Write a graph as JSON, with the same ids for the same graph.

``schemas/graph-1.schema.json`` describes the format; ``read_schema`` returns it.
"""

from __future__ import annotations

import dataclasses
import json
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from gradcheck_suite._version import __version__
from gradcheck_suite.reporting.json import to_document

if TYPE_CHECKING:
    from gradcheck_suite.findings import JSON
    from gradcheck_suite.graph.model import AutogradGraph

__all__ = ["graph_to_json", "read_schema"]

_SCHEMA = 1


def graph_to_json(graph: AutogradGraph) -> str:
    """Return everything that is known of ``graph``, the findings in the form of reports."""
    report = to_document(graph.report)
    document: dict[str, JSON | Any] = {
        "schema": _SCHEMA,
        "tool": "gradcheck-suite graph",
        "version": __version__,
        "state": graph.state,
        "roots": [dataclasses.asdict(root) for root in graph.roots],
        "ignored": graph.ignored,
        "calls": [dataclasses.asdict(call) for call in graph.calls],
        "nodes": [
            dataclasses.asdict(node) | {"saved_bytes": node.saved_bytes} for node in graph.nodes
        ],
        "edges": [dataclasses.asdict(edge) for edge in graph.edges],
        "findings": report["findings"],
        "summary": dict(graph.report.summary),
        "not_covered": graph.report.not_covered,
    }
    return json.dumps(document, indent=1, ensure_ascii=True, allow_nan=False) + "\n"


def read_schema() -> dict[str, Any]:
    """Return the JSON Schema of what ``graph_to_json`` writes."""
    text = (
        files("gradcheck_suite.graph")
        .joinpath("schemas")
        .joinpath(f"graph-{_SCHEMA}.schema.json")
        .read_text(encoding="utf-8")
    )
    schema: dict[str, Any] = json.loads(text)
    return schema
