"""Write a graph as text, picture, page or data: one module for each format."""

from __future__ import annotations
