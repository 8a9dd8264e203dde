"""Every gradient once, by as few evaluations as certainty allows."""

from __future__ import annotations
