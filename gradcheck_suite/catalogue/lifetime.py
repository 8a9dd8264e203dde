"""Graphs that live too long (GCS2xx)."""

from __future__ import annotations

from gradcheck_suite.catalogue._entry import Entry
from gradcheck_suite.severity import Severity

GRAPH_KEPT = Entry(
    code="GCS201",
    slug="graph-kept",
    severity=Severity.ERROR,
    in_source=True,
    at_run_time=True,
    title="",  # loss, output or metric stored with its graph: list, sum, dict, attribute, closure, meter, replay buffer, exception
    what="",
    why="",
    example="",
    instead="",
    detection="",
)

STATE_NOT_DETACHED = Entry(
    code="GCS202",
    slug="state-not-detached",
    severity=Severity.ERROR,
    in_source=True,
    at_run_time=True,
    title="",  # hidden state carried over steps with its graph
    what="",
    why="",
    example="",
    instead="",
    detection="",
)

RETAIN_GRAPH = Entry(
    code="GCS203",
    slug="retain-graph",
    severity=Severity.WARNING,
    in_source=True,
    at_run_time=True,
    title="",  # `retain_graph=True` with no second backward, or used to silence an error
    what="",
    why="",
    example="",
    instead="",
    detection="",
)

EVAL_WITH_GRAPH = Entry(
    code="GCS204",
    slug="eval-with-graph",
    severity=Severity.WARNING,
    in_source=True,
    at_run_time=True,
    title="",  # validation or inference records graphs: no no_grad / inference_mode
    what="",
    why="",
    example="",
    instead="",
    detection="",
)

TENSOR_ON_CTX = Entry(
    code="GCS205",
    slug="tensor-on-ctx",
    severity=Severity.WARNING,
    in_source=True,
    at_run_time=True,
    title="",  # `ctx.x = tensor` in place of save_for_backward: leaks, skips the version check
    what="",
    why="",
    example="",
    instead="",
    detection="",
)

CREATE_GRAPH_CYCLE = Entry(
    code="GCS206",
    slug="create-graph-cycle",
    severity=Severity.WARNING,
    in_source=True,
    at_run_time=True,
    title="",  # `backward(create_graph=True)` leaves parameter-grad cycles: use autograd.grad
    what="",
    why="",
    example="",
    instead="",
    detection="",
)

HOOK_KEEPS_GRAPH = Entry(
    code="GCS207",
    slug="hook-keeps-graph",
    severity=Severity.ERROR,
    in_source=True,
    at_run_time=True,
    title="",  # a hook stores activations or outputs undetached
    what="",
    why="",
    example="",
    instead="",
    detection="",
)

ENTRIES = (
    GRAPH_KEPT,
    STATE_NOT_DETACHED,
    RETAIN_GRAPH,
    EVAL_WITH_GRAPH,
    TENSOR_ON_CTX,
    CREATE_GRAPH_CYCLE,
    HOOK_KEEPS_GRAPH,
)
