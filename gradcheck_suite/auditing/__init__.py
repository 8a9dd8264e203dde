"""Audit a running training loop: which line corrupted, kept or misordered what."""

from __future__ import annotations

import gradcheck_suite._torch_compat  # noqa: F401 - refuses a torch that is too old
from gradcheck_suite.auditing.options import AuditOptions
from gradcheck_suite.auditing.session import Session, audit

__all__ = ["AuditOptions", "Session", "audit"]
