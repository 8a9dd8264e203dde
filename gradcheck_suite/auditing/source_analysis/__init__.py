"""What the source of a function that ran tells: where a graph is cut, where a container grows."""

from __future__ import annotations
