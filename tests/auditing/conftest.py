"""Helpers for audits of small training loops."""

from __future__ import annotations

import gc
import inspect
import sys
import threading
from typing import TYPE_CHECKING

import pytest
import torch
import torch._dynamo  # what the first step of an optimizer would load
from torch import nn

import gradcheck_suite as gs
from gradcheck_suite.auditing.detectors.memory import growing_graph
from gradcheck_suite.auditing.object_names import heap

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gradcheck_suite.findings import Finding


# Banks of cases, which tests import; none has doctests.
collect_ignore = ["leaks", "loops", "writers"]


def pytest_collection_finish():
    """Put aside what is there when tests begin: libraries, and thousands of collected tests.

    Searches for who holds a tensor read all objects of the process but what the collector has put
    aside, and would spend most of the time of these tests on that.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture
def objects_of_modules():
    """Let searches find what the modules of the tests hold themselves."""
    gc.unfreeze()
    yield
    gc.freeze()


@pytest.fixture(autouse=True)
def time_to_search(monkeypatch):
    """Let searches end in a process that holds what all tests together have imported."""
    monkeypatch.setattr(heap, "_AT_LEAST", 60.0)
    monkeypatch.setattr(growing_graph, "_BLOCKS", 10**9)


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def audited():
    """Run a loop under audit and return the session; an internal failure fails the test."""

    def run(loop: Callable[[], object], *, model=None, optimizers=None, **options):
        with gs.audit(model, optimizers, **options) as session:
            loop()
        assert not [line for line in session.report.not_covered if "bug in" in line]
        return session

    return run


@pytest.fixture
def line_of():
    """Return the number of the line of a function that ends with ``# <- marker``."""

    def find(function: Callable[..., object], marker: str = "here") -> int:
        lines, first = inspect.getsourcelines(function)
        hits = [
            first + i for i, line in enumerate(lines) if line.rstrip().endswith(f"# <- {marker}")
        ]
        assert len(hits) == 1, (marker, hits)
        return hits[0]

    return find


@pytest.fixture
def only():
    """Return the one finding of a session and check its code."""

    def check(session, code: str) -> Finding:
        assert [finding.code for finding in session.findings] == [code], session.findings
        return session.findings[0]

    return check


@pytest.fixture
def make_net():
    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))

    return make


@pytest.fixture
def batch():
    def draw() -> torch.Tensor:
        return torch.randn(6, 4)

    return draw


@pytest.fixture
def untraced():
    trace, of_threads = sys.gettrace(), threading.gettrace()
    sys.settrace(None)
    threading.settrace(None)
    yield
    threading.settrace(of_threads)
    sys.settrace(trace)
