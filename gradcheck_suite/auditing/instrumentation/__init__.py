"""What is replaced or hooked in torch: one module for each part of it that is watched."""

from __future__ import annotations
