"""Tell what backward will do, from any tensor that has a graph."""

from __future__ import annotations

from gradcheck_suite.graph._recording import Recording, record
from gradcheck_suite.graph._trace import trace_graph
from gradcheck_suite.graph.model import (
    AutogradGraph,
    Edge,
    EdgeGradient,
    Leaf,
    ModuleCall,
    Node,
    Root,
    SavedTensor,
    TensorType,
)

__all__ = [
    "AutogradGraph",
    "Edge",
    "EdgeGradient",
    "Leaf",
    "ModuleCall",
    "Node",
    "Recording",
    "Root",
    "SavedTensor",
    "TensorType",
    "record",
    "trace_graph",
]
