"""An audit and a recording that end in another order than they began leave nothing behind."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

import gradcheck_suite as gs
from gradcheck_suite._runtime.patches import Patches

PLACES = [
    (torch.autograd, "_engine_run_backward"),
    (torch.autograd.graph, "_engine_run_backward"),
    (torch.autograd.graph, "disable_saved_tensors_hooks"),
    (torch.autograd.graph.saved_tensors_hooks, "__enter__"),
    (torch.autograd.graph.saved_tensors_hooks, "__exit__"),
    (nn.Module, "__call__"),
]


@pytest.mark.parametrize("ends", [[0, 1], [1, 0]])
@pytest.mark.parametrize("begins", [[0, 1], [1, 0]])
def test_an_audit_and_a_recording(begins, ends):
    before = [getattr(owner, name) for owner, name in PLACES]
    model = nn.Linear(3, 1)
    watchers = [gs.audit(), gs.record(model, backward=True)]
    for index in begins:
        watchers[index].__enter__()
    model(torch.ones(2, 3)).sum().backward()
    for index in ends:
        watchers[index].__exit__(None, None, None)
    assert [getattr(owner, name) for owner, name in PLACES] == before
    assert watchers[1].graph.edges[0].gradient is not None


@pytest.mark.parametrize("ends", list(itertools.permutations(range(3))))
def test_three_recordings(ends):
    before = [getattr(owner, name) for owner, name in PLACES]
    recordings = [gs.record(backward=True) for _ in range(3)]
    for recording in recordings:
        recording.__enter__()
    for index in ends:
        recordings[index].__exit__(None, None, None)
    assert [getattr(owner, name) for owner, name in PLACES] == before


class TestPatches:
    class Owner:
        name = "old"

    def test_what_a_stranger_put_there_stays(self):
        class Owner(self.Owner):
            pass

        first, second = Patches(), Patches()
        first.replace(Owner, "name", lambda: 1)
        second.replace(Owner, "name", lambda: 2)
        first.restore()
        Owner.name = "theirs"
        second.restore()
        assert Owner.name == "theirs"

    def test_an_inherited_one_is_inherited_again(self):
        class Owner(self.Owner):
            pass

        first, second = Patches(), Patches()
        first.replace(Owner, "name", lambda: 1)
        second.replace(Owner, "name", lambda: 2)
        first.restore()
        assert Owner.__dict__["name"]() == 2
        second.restore()
        assert Owner.name == "old"
        assert "name" not in Owner.__dict__

    def test_values_that_cannot_be_hashed(self):
        class Owner(self.Owner):
            pass

        first, second = Patches(), Patches()
        first.replace(Owner, "name", [1])
        second.replace(Owner, "name", [2])
        first.restore()
        second.restore()
        assert Owner.name == [1]
