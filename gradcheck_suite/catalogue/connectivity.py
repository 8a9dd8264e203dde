"""Graphs that are cut and parameters that nobody trains (GCS4xx)."""

from __future__ import annotations

from gradcheck_suite.catalogue._entry import Entry
from gradcheck_suite.severity import Severity

GRAPH_BROKEN = Entry(
    code="GCS401",
    slug="graph-broken",
    severity=Severity.ERROR,
    in_source=True,
    at_run_time=True,
    title="",  # item, numpy, tensor(), detach, argmax, round, comparison on the way to the loss
    what="",
    why="",
    example="",
    instead="",
    detection="",
)

FORWARD_UNDER_NO_GRAD = Entry(
    code="GCS402",
    slug="forward-under-no-grad",
    severity=Severity.ERROR,
    in_source=True,
    at_run_time=True,
    title="",  # the forward (or all of it) inside no_grad or inference_mode, or grad mode left disabled; backward alone under no_grad is harmless
    what="",
    why="",
    example="",
    instead="",
    detection="",
)

PARAMETER_WITHOUT_GRADIENT = Entry(
    code="GCS403",
    slug="parameter-without-gradient",
    severity=Severity.WARNING,
    in_source=False,
    at_run_time=True,
    title="",  # trainable, never reached by backward: names the broken edge where there is one
    what="",
    why="",
    example="",
    instead="",
    detection="",
)

UNREGISTERED_MODULE = Entry(
    code="GCS404",
    slug="unregistered-module",
    severity=Severity.ERROR,
    in_source=True,
    at_run_time=True,
    title="",  # modules or parameters in a plain list, dict or tuple (fix: ModuleList/ParameterList)
    what="",
    why="",
    example="",
    instead="",
    detection="",
)

FORCED_REQUIRES_GRAD = Entry(
    code="GCS405",
    slug="forced-requires-grad",
    severity=Severity.ERROR,
    in_source=True,
    at_run_time=True,
    title="",  # `torch.tensor(loss, requires_grad=True)`, or `requires_grad_()` on a loss whose graph is cut: trains nothing
    what="",
    why="",
    example="",
    instead="",
    detection="",
)

FROZEN_PARAMETER = Entry(
    code="GCS406",
    slug="frozen-parameter",
    severity=Severity.WARNING,
    in_source=True,
    at_run_time=True,
    title="",  # handed to an optimizer with requires_grad False, or a freeze pattern wider than meant
    what="",
    why="",
    example="",
    instead="",
    detection="",
)

GRAD_READ_ON_NON_LEAF = Entry(
    code="GCS407",
    slug="grad-read-on-non-leaf",
    severity=Severity.WARNING,
    in_source=True,
    at_run_time=True,
    title="",  # `.grad` of an intermediate without retain_grad
    what="",
    why="",
    example="",
    instead="",
    detection="",
)

CHECKPOINT_CUTS_GRAPH = Entry(
    code="GCS408",
    slug="checkpoint-cuts-graph",
    severity=Severity.WARNING,
    in_source=True,
    at_run_time=True,
    title="",  # reentrant checkpoint whose inputs do not require grad
    what="",
    why="",
    example="",
    instead="",
    detection="",
)

ENTRIES = (
    GRAPH_BROKEN,
    FORWARD_UNDER_NO_GRAD,
    PARAMETER_WITHOUT_GRADIENT,
    UNREGISTERED_MODULE,
    FORCED_REQUIRES_GRAD,
    FROZEN_PARAMETER,
    GRAD_READ_ON_NON_LEAF,
    CHECKPOINT_CUTS_GRAPH,
)
