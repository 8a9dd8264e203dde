"""Tell what backward will do, from any tensor that has a graph."""

from __future__ import annotations

import gradcheck_suite._torch_compat  # noqa: F401 - refuses a torch that is too old
from gradcheck_suite.graph.diff import Change, GraphDiff, diff_graphs
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
from gradcheck_suite.graph.recording.recording import Recording, record
from gradcheck_suite.graph.torchviz import make_dot
from gradcheck_suite.graph.tracing import trace_graph

__all__ = [
    "AutogradGraph",
    "Change",
    "Edge",
    "EdgeGradient",
    "GraphDiff",
    "Leaf",
    "ModuleCall",
    "Node",
    "Recording",
    "Root",
    "SavedTensor",
    "TensorType",
    "diff_graphs",
    "make_dot",
    "record",
    "trace_graph",
]
