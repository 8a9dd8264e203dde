"""Directions and cotangents leave no element out."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from gradcheck_suite.verification.numerics.directions import generator_for, random_signs, scales_of


@given(seed=st.integers(0, 2**32 - 1))
def test_every_element_of_a_direction_moves(seed):
    drawn = random_signs(torch.empty(200, dtype=torch.float64), generator_for(seed, 1))
    assert bool(((drawn.abs() >= 0.5) & (drawn.abs() <= 1.5)).all())
    assert drawn.abs().unique().numel() == 200
    assert bool((drawn > 0).any())
    assert bool((drawn < 0).any())


def test_streams_are_independent_and_repeatable():
    like = torch.empty(8)
    one, again, other = (random_signs(like, generator_for(0, 1, n)) for n in (2, 2, 3))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


def test_scales_are_root_mean_squares_with_a_floor():
    values = [torch.full((4,), 2.0), torch.zeros(3), torch.tensor([1e-9]), torch.empty(0)]
    assert scales_of(values) == [2.0, 2.0, 2.0 * 2.0**-10, 2.0]
    assert scales_of([torch.zeros(2)]) == [1.0]
    assert scales_of([torch.tensor([3e38])]) == [torch.tensor(3e38).double().item()]
