"""What a custom autograd.Function promises (GCS5xx)."""

from __future__ import annotations

from gradcheck_suite.catalogue._entry import Entry
from gradcheck_suite.severity import Severity

BACKWARD_ARITY = Entry(
    code="GCS501",
    slug="backward-arity",
    severity=Severity.ERROR,
    in_source=True,
    at_run_time=True,
    title="",  # backward returns too few gradients
    what="",
    why="",
    example="",
    instead="",
    detection="",
)

LEGACY_FUNCTION = Entry(
    code="GCS502",
    slug="legacy-function",
    severity=Severity.ERROR,
    in_source=True,
    at_run_time=True,
    title="",  # autograd.Function with instance methods, called as `Fn()(x)`
    what="",
    why="",
    example="",
    instead="",
    detection="",
)

MISSING_MARK_DIRTY = Entry(
    code="GCS503",
    slug="missing-mark-dirty",
    severity=Severity.ERROR,
    in_source=True,
    at_run_time=True,
    title="",  # forward modifies an input in place and does not say so
    what="",
    why="",
    example="",
    instead="",
    detection="",
)

MISSING_ONCE_DIFFERENTIABLE = Entry(
    code="GCS504",
    slug="missing-once-differentiable",
    severity=Severity.WARNING,
    in_source=True,
    at_run_time=False,
    title="",  # backward leaves autograd (numpy, .data, C ext) without once_differentiable (fix)
    what="",
    why="",
    example="",
    instead="",
    detection="",
)

OUTPUT_WRONGLY_DIFFERENTIABLE = Entry(
    code="GCS505",
    slug="output-wrongly-differentiable",
    severity=Severity.WARNING,
    in_source=True,
    at_run_time=True,
    title="",  # integer-like or mask output not marked non-differentiable
    what="",
    why="",
    example="",
    instead="",
    detection="",
)

GRAD_OUTPUT_MODIFIED = Entry(
    code="GCS506",
    slug="grad-output-modified",
    severity=Severity.ERROR,
    in_source=True,
    at_run_time=True,
    title="",  # backward writes into the gradient it was given
    what="",
    why="",
    example="",
    instead="",
    detection="",
)

SAVED_INTERMEDIATE = Entry(
    code="GCS507",
    slug="saved-intermediate",
    severity=Severity.WARNING,
    in_source=True,
    at_run_time=True,
    title="",  # an intermediate of forward is saved: first order right, double backward wrong
    what="",
    why="",
    example="",
    instead="",
    detection="",
)

NONE_GRADIENT = Entry(
    code="GCS508",
    slug="none-gradient",
    severity=Severity.ERROR,
    in_source=True,
    at_run_time=True,
    title="",  # returns None (or zeros) for an input that needs a gradient; needs_input_grad indices mixed up
    what="",
    why="",
    example="",
    instead="",
    detection="",
)

ENTRIES = (
    BACKWARD_ARITY,
    LEGACY_FUNCTION,
    MISSING_MARK_DIRTY,
    MISSING_ONCE_DIFFERENTIABLE,
    OUTPUT_WRONGLY_DIFFERENTIABLE,
    GRAD_OUTPUT_MODIFIED,
    SAVED_INTERMEDIATE,
    NONE_GRADIENT,
)
