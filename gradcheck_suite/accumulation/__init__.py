"""Compare the gradient of an accumulation window with that of the full batch."""

from __future__ import annotations

import gradcheck_suite._torch_compat  # noqa: F401 - refuses a torch that is too old
from gradcheck_suite.accumulation.check import check_accumulation

__all__ = ["check_accumulation"]
