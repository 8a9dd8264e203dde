"""What detectors ask of a graph before its backward is looked at once, and let go of again."""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING, Any

import torch

import gradcheck_suite as gs
from gradcheck_suite.auditing.detectors import _survey
from gradcheck_suite.auditing.events import BackwardStarted

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pytest


class _Mark:
    """Lives as long as the node that has it."""


def test_each_graph_is_surveyed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    walks: list[int] = []
    walk = _survey._walk

    def counted(roots: Iterable[torch.Tensor]) -> _survey.Survey:
        walks.append(1)
        return walk(roots)

    monkeypatch.setattr(_survey, "_walk", counted)
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
    event: Any = BackwardStarted(0, None, 0, (y,), True, {})
    plain = set(_survey.nodes_of(event))
    found = _survey.survey(event)
    assert _survey.survey(event) is found
    assert set(_survey.nodes_of(event)) == plain == found.nodes
    assert found.leaves == {id(x): x}
    assert found.sloped == {id(x)}
    assert found.flat == {"round"}
