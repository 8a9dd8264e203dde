"""What the user calls a tensor, and which objects of the program keep it."""

from __future__ import annotations
