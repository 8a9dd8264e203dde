"""Compare whole Jacobians, entry by entry, in bounded memory."""

from __future__ import annotations
