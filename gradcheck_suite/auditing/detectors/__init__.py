"""The detectors, one module for each family of mistakes; all read the same stream of events."""

from __future__ import annotations
