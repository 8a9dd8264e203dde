"""All Functions that are wrong only under one variation of the inputs."""

from __future__ import annotations

# Each adds its own to the bank; they have no names in common.
from tests.verification.stages.varied import layouts, needs, repeats, sizes, values
from tests.verification.stages.varied.making import WRONG

__all__ = ["WRONG", "layouts", "needs", "repeats", "sizes", "values"]
