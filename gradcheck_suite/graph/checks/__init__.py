"""Judge a graph: what is wrong with it, and what could not be seen."""

from __future__ import annotations
