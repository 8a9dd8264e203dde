"""The order of zero_grad, backward, clip, unscale and step (GCS3xx)."""

from __future__ import annotations

from gradcheck_suite.catalogue._entry import Entry
from gradcheck_suite.severity import Severity

MISSING_ZERO_GRAD = Entry(
    code="GCS301",
    slug="missing-zero-grad",
    severity=Severity.ERROR,
    in_source=True,
    at_run_time=True,
    title="",  # a gradient that step() has consumed is added to and used again
    what="",
    why="",
    example="",
    instead="",
    detection="",
)

ZERO_GRAD_MISPLACED = Entry(
    code="GCS302",
    slug="zero-grad-misplaced",
    severity=Severity.ERROR,
    in_source=True,
    at_run_time=True,
    title="",  # between backward and step; wrong optimizer of two; every micro-batch of an accumulation window
    what="",
    why="",
    example="",
    instead="",
    detection="",
)

STEP_WITHOUT_BACKWARD = Entry(
    code="GCS303",
    slug="step-without-backward",
    severity=Severity.ERROR,
    in_source=True,
    at_run_time=True,
    title="",  # step() with no fresh gradient: before backward, or a loop without one
    what="",
    why="",
    example="",
    instead="",
    detection="",
)

CLIP_MISPLACED = Entry(
    code="GCS304",
    slug="clip-misplaced",
    severity=Severity.ERROR,
    in_source=True,
    at_run_time=True,
    title="",  # clipping after step, before backward, on each micro-batch, or of an exhausted iterator
    what="",
    why="",
    example="",
    instead="",
    detection="",
)

CLIP_BEFORE_UNSCALE = Entry(
    code="GCS305",
    slug="clip-before-unscale",
    severity=Severity.ERROR,
    in_source=True,
    at_run_time=True,
    title="",  # clipping scaled gradients (GradScaler) (fix)
    what="",
    why="",
    example="",
    instead="",
    detection="",
)

SCHEDULER_BEFORE_STEP = Entry(
    code="GCS306",
    slug="scheduler-before-step",
    severity=Severity.WARNING,
    in_source=True,
    at_run_time=True,
    title="",  # lr_scheduler.step() before optimizer.step()
    what="",
    why="",
    example="",
    instead="",
    detection="",
)

PARAMETER_NOT_OPTIMIZED = Entry(
    code="GCS307",
    slug="parameter-not-optimized",
    severity=Severity.ERROR,
    in_source=True,
    at_run_time=True,
    title="",  # gets gradients, owned by no optimizer: replaced head, layer added later, empty or exhausted group
    what="",
    why="",
    example="",
    instead="",
    detection="",
)

STALE_PARAMETER = Entry(
    code="GCS308",
    slug="stale-parameter",
    severity=Severity.WARNING,
    in_source=True,
    at_run_time=True,
    title="",  # owned by an optimizer, no longer part of the model
    what="",
    why="",
    example="",
    instead="",
    detection="",
)

LEFTOVER_GRADIENT = Entry(
    code="GCS309",
    slug="leftover-gradient",
    severity=Severity.WARNING,
    in_source=True,
    at_run_time=True,
    title="",  # another loss's gradient is still there when this optimizer steps (GAN)
    what="",
    why="",
    example="",
    instead="",
    detection="",
)

SCALER_MISUSE = Entry(
    code="GCS310",
    slug="scaler-misuse",
    severity=Severity.ERROR,
    in_source=True,
    at_run_time=True,
    title="",  # scale/unscale_/step/update missing, twice or out of order
    what="",
    why="",
    example="",
    instead="",
    detection="",
)

ENTRIES = (
    MISSING_ZERO_GRAD,
    ZERO_GRAD_MISPLACED,
    STEP_WITHOUT_BACKWARD,
    CLIP_MISPLACED,
    CLIP_BEFORE_UNSCALE,
    SCHEDULER_BEFORE_STEP,
    PARAMETER_NOT_OPTIMIZED,
    STALE_PARAMETER,
    LEFTOVER_GRADIENT,
    SCALER_MISUSE,
)
