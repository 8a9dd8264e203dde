"""Compare whole Jacobians, entry by entry, in bounded memory."""

from __future__ import annotations

from gradcheck_suite.verification.jacobian.compare import Comparison, compare_jacobians
from gradcheck_suite.verification.jacobian.stage import compare_full_jacobians

__all__ = ["Comparison", "compare_full_jacobians", "compare_jacobians"]
