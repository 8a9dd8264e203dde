"""Find the call in a deep model whose backward is wrong."""

from __future__ import annotations

from gradcheck_suite.verification.localization.search import localize

__all__ = ["localize"]
