"""Training and evaluation mode (GCS7xx)."""

from __future__ import annotations

from gradcheck_suite.catalogue._entry import Entry
from gradcheck_suite.severity import Severity

TRAIN_MODE_IN_EVAL = Entry(
    code="GCS701",
    slug="train-mode-in-eval",
    severity=Severity.WARNING,
    in_source=True,
    at_run_time=True,
    title="",  # validation with dropout or batch norm in training mode
    what="",
    why="",
    example="",
    instead="",
    detection="",
)

STUCK_IN_EVAL = Entry(
    code="GCS702",
    slug="stuck-in-eval",
    severity=Severity.WARNING,
    in_source=True,
    at_run_time=True,
    title="",  # eval() and never train() again while steps go on
    what="",
    why="",
    example="",
    instead="",
    detection="",
)

ENTRIES = (
    TRAIN_MODE_IN_EVAL,
    STUCK_IN_EVAL,
)
