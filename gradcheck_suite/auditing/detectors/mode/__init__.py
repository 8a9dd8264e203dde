"""Training and evaluation mode where the other is meant."""

from __future__ import annotations
