"""What is wrong with a gradient, told as findings, one for each mistake."""

from __future__ import annotations
