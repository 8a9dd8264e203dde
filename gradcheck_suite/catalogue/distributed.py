"""Several processes (GCS8xx)."""

from __future__ import annotations

from gradcheck_suite.catalogue._entry import Entry
from gradcheck_suite.severity import Severity

RANKS_DIVERGED = Entry(
    code="GCS801",
    slug="ranks-diverged",
    severity=Severity.ERROR,
    in_source=False,
    at_run_time=True,
    title="",  # parameters differ between ranks that should be equal
    what="",
    why="",
    example="",
    instead="",
    detection="",
)

GRADIENT_NOT_SYNCHRONIZED = Entry(
    code="GCS802",
    slug="gradient-not-synchronized",
    severity=Severity.ERROR,
    in_source=False,
    at_run_time=True,
    title="",  # stepped on gradients that were not reduced (no_sync left open, module bypassed)
    what="",
    why="",
    example="",
    instead="",
    detection="",
)

ENTRIES = (
    RANKS_DIVERGED,
    GRADIENT_NOT_SYNCHRONIZED,
)
