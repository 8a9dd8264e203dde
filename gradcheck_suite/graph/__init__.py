"""Tell what backward will do, from any tensor that has a graph."""

from __future__ import annotations

from gradcheck_suite.graph._trace import trace_graph
from gradcheck_suite.graph.model import (
    AutogradGraph,
    Edge,
    Leaf,
    Node,
    Root,
    SavedTensor,
    TensorType,
)

__all__ = [
    "AutogradGraph",
    "Edge",
    "Leaf",
    "Node",
    "Root",
    "SavedTensor",
    "TensorType",
    "trace_graph",
]
