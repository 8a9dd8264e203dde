"""Values that are wrong when backward uses them."""

from __future__ import annotations
