"""What detectors ask of a graph before its backward is looked at once, and let go of again."""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING, Any

import torch

import gradcheck_suite as gs
from gradcheck_suite.auditing.detectors import reachable_parameters
from gradcheck_suite.auditing.events import BackwardStarted

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pytest


class _Mark:
    """Lives as long as the node that has it."""


def test_each_graph_is_surveyed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    walks: list[int] = []
    walk = reachable_parameters._walk

    def counted(roots: Iterable[torch.Tensor], known: Any) -> reachable_parameters.ReachableGraph:
        walks.append(1)
        return walk(roots, known)

    monkeypatch.setattr(reachable_parameters, "_walk", counted)
    x = torch.ones(3, requires_grad=True)
    with gs.audit():
        for backwards in range(1, 4):
            x.exp().sum().backward()
            assert len(walks) == backwards


def test_a_survey_keeps_nothing_of_the_graph() -> None:
    x = torch.ones(3, requires_grad=True)
    gc.disable()
    try:
        with gs.audit():
            y = x.exp()
            assert y.grad_fn is not None
            mark = _Mark()
            y.grad_fn.metadata["mark"] = mark
            marks = weakref.ref(mark)
            del mark
            y.sum().backward()
            assert marks() is not None
            del y
            assert marks() is None
    finally:
        gc.enable()


def test_a_survey_and_a_plain_walk_meet_the_same_nodes() -> None:
    x = torch.ones(3, requires_grad=True)
    y = (x.exp() * x.sin() + x.round()).sum()
    event: Any = BackwardStarted(0, None, 0, (y,), True, {}, {})
    plain = set(reachable_parameters.nodes_of(event))
    found = reachable_parameters.reachable_graph(event)
    assert reachable_parameters.reachable_graph(event) is found
    assert set(reachable_parameters.nodes_of(event)) == plain == found.nodes
    assert found.leaves == {id(x): x}
    assert found.sloped == {id(x)}
    assert found.flat == {"round"}


def test_a_survey_asks_no_node_again_what_it_leads_to(monkeypatch: pytest.MonkeyPatch) -> None:
    handed_on: list[Any] = []
    known_then: list[set[Any]] = []
    walk = reachable_parameters._walk

    def looked_at(roots: Iterable[torch.Tensor], known: Any) -> reachable_parameters.ReachableGraph:
        handed_on.append(known)
        known_then.append(set(known))
        return walk(roots, known)

    monkeypatch.setattr(reachable_parameters, "_walk", looked_at)
    x = torch.ones(3, requires_grad=True)
    y = (x.exp() * x.sin()).sum()
    nodes = reachable_parameters.nodes_under((y,))
    with gs.audit():
        y.backward()
    assert known_then == [set(nodes)]
    assert handed_on == [{}]  # the event keeps no graph
    y = (x.exp() * x.sin()).sum()
    event: Any = BackwardStarted(0, None, 0, (y,), True, {}, {y.grad_fn: ()})
    assert reachable_parameters.reachable_graph(event).nodes == {y.grad_fn}


def test_a_way_without_zero_slope_counts_however_late_it_is_met() -> None:
    x, z = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    y = (x.round() + x.exp() + z.round().exp()).sum()
    event: Any = BackwardStarted(0, None, 0, (y,), True, {}, {})
    found = reachable_parameters.reachable_graph(event)
    assert found.sloped == {id(x)}
    assert set(found.leaves) == {id(x), id(z)}
    assert found.nodes == set(reachable_parameters.nodes_under((y,)))
