"""Serve editors."""

from __future__ import annotations


def serve() -> None:
    """Stand in."""
