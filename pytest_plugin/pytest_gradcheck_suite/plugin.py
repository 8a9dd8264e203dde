"""What pytest loads at start-up: hooks and fixtures, and none of torch, libcst and rich."""

from __future__ import annotations
