"""Note what a forward and its backward do, for the graph that is traced afterwards."""

from __future__ import annotations
