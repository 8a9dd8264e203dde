"""Other layouts, values and sizes of the inputs: code that is right at one kind point only."""

from __future__ import annotations
