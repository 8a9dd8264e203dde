"""Other layouts, values and sizes of the inputs: code that is right at one kind point only."""

from __future__ import annotations

from gradcheck_suite.verification.variations.names import VARIATIONS, chosen_variations
from gradcheck_suite.verification.variations.stage import vary_inputs

__all__ = ["VARIATIONS", "chosen_variations", "vary_inputs"]
