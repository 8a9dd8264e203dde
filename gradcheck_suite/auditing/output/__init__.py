"""What the user sees of an audit: the report, findings as they come, the status line."""

from __future__ import annotations
