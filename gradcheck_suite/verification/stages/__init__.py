"""What comes after the gradients themselves, each a stage of its own."""

from __future__ import annotations
