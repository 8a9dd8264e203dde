"""A failing check as a script of its own, to attach to a bug report."""

from __future__ import annotations
