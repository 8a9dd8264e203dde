"""Graphs that live longer than anybody needs them."""

from __future__ import annotations
