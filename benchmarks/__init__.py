"""Benchmarks: each prints a table and, with ``--json``, the same figures.

``python -m benchmarks`` runs them all and writes docs/benchmarks.md;
``python -m benchmarks.audit_overhead`` runs one.
"""

from __future__ import annotations
