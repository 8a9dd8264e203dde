"""Derivatives by differences, and what they can tell: nothing here knows a report."""

from __future__ import annotations
