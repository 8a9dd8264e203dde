"""Gradient verification: is every gradient what central differences say it is?"""

from __future__ import annotations

import gradcheck_suite._torch_compat  # noqa: F401 - refuses a torch that is too old
from gradcheck_suite.verification.check import check_gradients
from gradcheck_suite.verification.localization.search import localize
from gradcheck_suite.verification.torch_api import gradcheck, gradgradcheck

__all__ = ["check_gradients", "gradcheck", "gradgradcheck", "localize"]
