"""Gradients that are wrong (GCS6xx)."""

from __future__ import annotations

from gradcheck_suite.catalogue._entry import Entry
from gradcheck_suite.severity import Severity

WRONG_GRADIENT = Entry(
    code="GCS601",
    slug="wrong-gradient",
    severity=Severity.ERROR,
    in_source=False,
    at_run_time=True,
    title="",  # analytic and numeric gradients differ beyond the measured error
    what="",
    why="",
    example="",
    instead="",
    detection="",
)

WRONG_SECOND_ORDER = Entry(
    code="GCS602",
    slug="wrong-second-order",
    severity=Severity.ERROR,
    in_source=False,
    at_run_time=True,
    title="",  # first order right, gradient of the gradient wrong
    what="",
    why="",
    example="",
    instead="",
    detection="",
)

NONDETERMINISTIC_GRADIENT = Entry(
    code="GCS603",
    slug="nondeterministic-gradient",
    severity=Severity.ERROR,
    in_source=False,
    at_run_time=True,
    title="",  # two identical backwards differ
    what="",
    why="",
    example="",
    instead="",
    detection="",
)

NON_FINITE_GRADIENT = Entry(
    code="GCS604",
    slug="non-finite-gradient",
    severity=Severity.ERROR,
    in_source=True,
    at_run_time=True,
    title="",  # NaN/Inf born in backward: names the first bad op (sqrt(0), norm of zeros, where-with-NaN, log(0))
    what="",
    why="",
    example="",
    instead="",
    detection="",
)

FORWARD_MODE_MISMATCH = Entry(
    code="GCS605",
    slug="forward-mode-mismatch",
    severity=Severity.ERROR,
    in_source=False,
    at_run_time=True,
    title="",  # JVP and VJP disagree
    what="",
    why="",
    example="",
    instead="",
    detection="",
)

BATCHED_GRADIENT_MISMATCH = Entry(
    code="GCS606",
    slug="batched-gradient-mismatch",
    severity=Severity.ERROR,
    in_source=False,
    at_run_time=True,
    title="",  # vmap of backward disagrees with the loop
    what="",
    why="",
    example="",
    instead="",
    detection="",
)

UNDEFINED_GRADIENT = Entry(
    code="GCS607",
    slug="undefined-gradient",
    severity=Severity.ERROR,
    in_source=False,
    at_run_time=True,
    title="",  # fails on, or mistreats, an undefined (None) incoming gradient
    what="",
    why="",
    example="",
    instead="",
    detection="",
)

DETACHED_OUTPUT = Entry(
    code="GCS608",
    slug="detached-output",
    severity=Severity.ERROR,
    in_source=False,
    at_run_time=True,
    title="",  # an output depends on the input but does not require grad
    what="",
    why="",
    example="",
    instead="",
    detection="",
)

LAYOUT_DEPENDENT_GRADIENT = Entry(
    code="GCS609",
    slug="layout-dependent-gradient",
    severity=Severity.ERROR,
    in_source=False,
    at_run_time=True,
    title="",  # wrong for expanded, strided or aliased incoming gradients or inputs
    what="",
    why="",
    example="",
    instead="",
    detection="",
)

NONLINEAR_BACKWARD = Entry(
    code="GCS610",
    slug="nonlinear-backward",
    severity=Severity.ERROR,
    in_source=False,
    at_run_time=True,
    title="",  # backward is not linear in the incoming gradient (clamped, ignored)
    what="",
    why="",
    example="",
    instead="",
    detection="",
)

COMPILED_GRADIENT_MISMATCH = Entry(
    code="GCS611",
    slug="compiled-gradient-mismatch",
    severity=Severity.ERROR,
    in_source=False,
    at_run_time=True,
    title="",  # torch.compile's gradient differs from eager's
    what="",
    why="",
    example="",
    instead="",
    detection="",
)

ENTRIES = (
    WRONG_GRADIENT,
    WRONG_SECOND_ORDER,
    NONDETERMINISTIC_GRADIENT,
    NON_FINITE_GRADIENT,
    FORWARD_MODE_MISMATCH,
    BATCHED_GRADIENT_MISMATCH,
    UNDEFINED_GRADIENT,
    DETACHED_OUTPUT,
    LAYOUT_DEPENDENT_GRADIENT,
    NONLINEAR_BACKWARD,
    COMPILED_GRADIENT_MISMATCH,
)
