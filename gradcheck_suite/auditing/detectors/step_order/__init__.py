"""Backwards, clearings and steps in the wrong order, or of the wrong parameters."""

from __future__ import annotations
