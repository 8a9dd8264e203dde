"""Read the graph that torch keeps: its nodes, roots, leaves and saved tensors."""

from __future__ import annotations
