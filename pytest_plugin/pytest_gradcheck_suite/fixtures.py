"""The fixtures; their docstrings are what ``pytest --fixtures`` shows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gradcheck_suite.options import ACTIVE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gradcheck_suite.audit import Auditor
    from pytest_gradcheck_suite.gradient_check import GradientCheck
    from pytest_gradcheck_suite.graph_artifacts import GraphTracer

__all__ = ["autograd_audit", "autograd_graph", "gradient_check"]


@pytest.fixture
def gradient_check(request: pytest.FixtureRequest) -> GradientCheck:
    """Check every gradient of a function or module, as in ``gradient_check(model, inputs)``.

    Takes the arguments of ``gradcheck_suite.check_gradients`` and returns its report. The test
    fails with the whole report if there are findings of severity error, or of ``fail_on``; with
    ``check=False`` it never does. ``gradient_check.snapshot(model, inputs)`` fails if the
    gradients are not those that were stored beside the test,
    ``gradient_check.accumulation(make, train, batch)`` if those that a loop accumulates are not
    those of the full batch.
    """
    _load_runtime(request)
    from pytest_gradcheck_suite.gradient_check import GradientCheck  # noqa: PLC0415 - needs torch

    return GradientCheck(request.node)


@pytest.fixture
def autograd_audit(request: pytest.FixtureRequest) -> Auditor:
    """Audit the test: it fails if there are findings of severity error.

    ``autograd_audit.session`` is the audit, ``autograd_audit.allow("slug")`` lets a mistake pass,
    ``autograd_audit.frozen(model.encoder)`` lets nothing of that change.
    ``with autograd_audit(model) as session:`` audits that block instead, and takes the arguments
    of ``gradcheck_suite.audit`` and ``fail_on``. If the test raises, its exception passes, and
    the findings follow in a section of the report.
    """
    _load_runtime(request)
    from pytest_gradcheck_suite.audit import auditor_of  # noqa: PLC0415 - needs torch

    return auditor_of(request.node)


@pytest.fixture
def autograd_graph(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GraphTracer]:
    """Trace the graph of tensors and save its picture if the test fails.

    ``graph = autograd_graph(loss, model)`` takes the arguments of ``gradcheck_suite.trace_graph``
    and returns the graph. If the test fails, a page that shows each graph is saved beside the
    report, or in a temporary folder, and the failure says where.
    """
    _load_runtime(request)
    from pytest_gradcheck_suite.graph_artifacts import graph_tracer_of  # noqa: PLC0415 - needs torch

    tracer = graph_tracer_of(request.node, tmp_path_factory)
    yield tracer
    tracer.forget()


def _load_runtime(request: pytest.FixtureRequest) -> None:
    """Load torch; a fixture that was asked for by ``request.getfixturevalue`` comes unannounced."""
    __tracebackhide__ = True
    from pytest_gradcheck_suite.runtime import runtime  # noqa: PLC0415 - on first use

    request.config.stash[ACTIVE] = True
    runtime(f"the fixture {request.fixturename}")
