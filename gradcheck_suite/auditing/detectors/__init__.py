"""The detectors, in families under their catalogue slugs; all read the same stream of events."""

from __future__ import annotations
