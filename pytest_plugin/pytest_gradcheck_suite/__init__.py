"""The pytest plugin of gradcheck-suite."""

from __future__ import annotations
