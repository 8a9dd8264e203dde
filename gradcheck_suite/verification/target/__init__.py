"""The user's callable as a pure function of named tensors."""

from __future__ import annotations
