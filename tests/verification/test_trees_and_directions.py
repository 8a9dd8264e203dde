"""Containers keep their shape and types; directions leave no element out."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from hypothesis import given
from hypothesis import strategies as st

from gradcheck_suite.verification.directions import generator_for, scales_of, spread_signs
from gradcheck_suite.verification.trees import leaves_with_paths, replace_leaves

TREES = st.recursive(
    st.integers(),
    lambda children: (
        st.lists(children, max_size=3)
        | st.tuples(children, children)
        | st.dictionaries(st.text(max_size=2), children, max_size=3)
    ),
    max_leaves=12,
)


@given(tree=TREES)
def test_paths_reach_their_leaves(tree):
    for path, leaf in leaves_with_paths(tree, "tree"):
        assert eval(path, {"tree": tree}) == leaf


@given(tree=TREES)
def test_leaves_are_replaced_in_the_order_of_their_paths(tree):
    leaves = [leaf for _, leaf in leaves_with_paths(tree, "tree")]
    remaining = iter(range(len(leaves)))
    numbered = replace_leaves(tree, lambda _: next(remaining))
    assert [leaf for _, leaf in leaves_with_paths(numbered, "tree")] == list(range(len(leaves)))
    assert replace_leaves(tree, lambda leaf: leaf) == tree


def test_dataclasses_are_rebuilt_without_running_their_constructor():
    @dataclass(frozen=True)
    class Batch:
        x: int
        calls: list = field(default_factory=list)

        def __post_init__(self):
            self.calls.append("made")

    batch = Batch(1)
    twin = replace_leaves((batch,), lambda leaf: 2 if leaf == 1 else leaf)[0]
    assert (twin.x, twin.calls, batch.x) == (2, ["made"], 1)


@given(seed=st.integers(0, 2**32 - 1))
def test_every_element_of_a_direction_moves(seed):
    drawn = spread_signs(torch.empty(200, dtype=torch.float64), generator_for(seed, 1))
    assert bool(((drawn.abs() >= 0.5) & (drawn.abs() <= 1.5)).all())
    assert drawn.abs().unique().numel() == 200
    assert bool((drawn > 0).any())
    assert bool((drawn < 0).any())


def test_streams_are_independent_and_repeatable():
    like = torch.empty(8)
    one, again, other = (spread_signs(like, generator_for(0, 1, n)) for n in (2, 2, 3))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


def test_scales_are_root_mean_squares_with_a_floor():
    values = [torch.full((4,), 2.0), torch.zeros(3), torch.tensor([1e-9]), torch.empty(0)]
    assert scales_of(values) == [2.0, 2.0, 2.0 * 2.0**-10, 2.0]
    assert scales_of([torch.zeros(2)]) == [1.0]
    assert scales_of([torch.tensor([3e38])]) == [torch.tensor(3e38).double().item()]
