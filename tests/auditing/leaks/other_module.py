"""A module whose global another one fills."""

from __future__ import annotations

from typing import Any

RECORDS: list[Any] = []
