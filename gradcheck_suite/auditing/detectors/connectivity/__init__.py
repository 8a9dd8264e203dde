"""Parameters that gradients do not reach, or reach against what was declared."""

from __future__ import annotations
