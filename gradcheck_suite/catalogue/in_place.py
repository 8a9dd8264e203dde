"""In-place writes and aliases (GCS1xx)."""

from __future__ import annotations

from gradcheck_suite.catalogue._entry import Entry
from gradcheck_suite.severity import Severity

LEAF_INPLACE = Entry(
    code="GCS101",
    slug="leaf-inplace",
    severity=Severity.ERROR,
    in_source=True,
    at_run_time=True,
    title="",  # in-place op, augmented or subscript assignment on a leaf that requires grad (also through an alias)
    what="",
    why="",
    example="",
    instead="",
    detection="",
)

LEAF_REBOUND = Entry(
    code="GCS102",
    slug="leaf-rebound",
    severity=Severity.WARNING,
    in_source=True,
    at_run_time=True,
    title="",  # `w = w - lr*g`, `w = w.to(d)`: the name no longer holds the leaf, `.grad` stays None
    what="",
    why="",
    example="",
    instead="",
    detection="",
)

SAVED_TENSOR_MODIFIED = Entry(
    code="GCS103",
    slug="saved-tensor-modified",
    severity=Severity.ERROR,
    in_source=True,
    at_run_time=True,
    title="",  # overwritten after an op saved it for backward (torch raises; we name writer, saver and origin)
    what="",
    why="",
    example="",
    instead="",
    detection="",
)

SAVED_TENSOR_CORRUPTED = Entry(
    code="GCS104",
    slug="saved-tensor-corrupted",
    severity=Severity.ERROR,
    in_source=False,
    at_run_time=True,
    title="",  # the same through `.data`, numpy, DLPack, storage or an extension: no version bump, silent wrong gradient
    what="",
    why="",
    example="",
    instead="",
    detection="",
)

DATA_WRITE = Entry(
    code="GCS105",
    slug="data-write",
    severity=Severity.WARNING,
    in_source=True,
    at_run_time=False,
    title="",  # a write through `.data` or a `.detach()`/`.numpy()` alias outside initialisation
    what="",
    why="",
    example="",
    instead="",
    detection="",
)

SLICE_WRITE_IN_LOOP = Entry(
    code="GCS106",
    slug="slice-write-in-loop",
    severity=Severity.WARNING,
    in_source=True,
    at_run_time=True,
    title="",  # `out[i] = f(x)` builds a CopySlices chain: stack or cat instead (fix)
    what="",
    why="",
    example="",
    instead="",
    detection="",
)

SLICE_READ_THEN_WRITE = Entry(
    code="GCS107",
    slug="slice-read-then-write",
    severity=Severity.ERROR,
    in_source=True,
    at_run_time=True,
    title="",  # `s[1] = s[0] * x`: the view read is saved, then its base is written: clone it (fix)
    what="",
    why="",
    example="",
    instead="",
    detection="",
)

INPLACE_ON_SAVED_OUTPUT = Entry(
    code="GCS108",
    slug="inplace-on-saved-output",
    severity=Severity.ERROR,
    in_source=True,
    at_run_time=True,
    title="",  # relu_/mul_/`inplace=True` on the output of sigmoid, tanh, exp, softmax, sqrt, … which backward needs
    what="",
    why="",
    example="",
    instead="",
    detection="",
)

STEP_BEFORE_SECOND_BACKWARD = Entry(
    code="GCS109",
    slug="step-before-second-backward",
    severity=Severity.ERROR,
    in_source=True,
    at_run_time=True,
    title="",  # an optimizer writes weights that a still-pending backward has saved (two-player training)
    what="",
    why="",
    example="",
    instead="",
    detection="",
)

ENTRIES = (
    LEAF_INPLACE,
    LEAF_REBOUND,
    SAVED_TENSOR_MODIFIED,
    SAVED_TENSOR_CORRUPTED,
    DATA_WRITE,
    SLICE_WRITE_IN_LOOP,
    SLICE_READ_THEN_WRITE,
    INPLACE_ON_SAVED_OUTPUT,
    STEP_BEFORE_SECOND_BACKWARD,
)
