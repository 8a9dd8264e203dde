"""How running functions reach a tensor, and which line sets it."""

from __future__ import annotations

import types

import pytest
import torch

from gradcheck_suite.auditing.object_names.held_tensors import held_over, only_assignment


def held(thing):
    return held_over({thing.grad_fn})


def test_a_variable():
    kept_here = torch.ones(2, requires_grad=True) * 2
    found = held(kept_here)
    assert found.name in {"thing", "kept_here"}


@pytest.mark.parametrize(
    ("make", "name", "key"),
    [
        (lambda x: {"features": x}, "box['features']", "features"),
        (lambda x: [torch.ones(1), x], "box[1]", None),
        (lambda x: types.SimpleNamespace(hidden=x), "box.hidden", "hidden"),
    ],
)
def test_what_holds_it(make, name, key):
    box = make(torch.ones(2, requires_grad=True) * 2)
    nodes = {value.grad_fn for value in _tensors(box)} - {None}
    found = held_over(nodes)
    assert (found.name, found.key) == (name, key)


def _tensors(box):
    own = box if isinstance(box, (dict, list)) else vars(box)
    return own if isinstance(own, list) else own.values()


def test_nothing_holds_it():
    assert held_over({object()}) is None


def test_the_only_line_that_sets_a_name(line_of):
    def sets():
        return {"a_name_set_once_here": 1}  # <- here

    assert only_assignment("a_name_set_once_here").line == line_of(sets)


def test_a_name_that_two_lines_set():
    assert only_assignment("found") is None
