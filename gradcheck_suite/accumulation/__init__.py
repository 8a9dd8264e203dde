"""Compare the gradient of an accumulation window with that of the full batch."""

from __future__ import annotations

from gradcheck_suite.accumulation.check import check_accumulation

__all__ = ["check_accumulation"]
