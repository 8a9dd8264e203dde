"""The states of the generators are put back exactly, a seeded one by its seed."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from gradcheck_suite.verification.randomness import RandomState, preserved_randomness


def draws():
    # An odd number of normal draws leaves one behind for the next.
    return torch.rand(3).tolist(), random.random(), np.random.standard_normal(3).tolist()


@pytest.fixture(autouse=True)
def _untouched():
    with preserved_randomness():
        yield


@pytest.mark.parametrize("seed", [0, 7, 2**32 - 1])
def test_a_seeded_state_is_restored_by_its_seed(seed):
    state = RandomState.from_seed(seed)
    state.restore()
    first = draws()
    assert not state.is_current()
    state.restore()
    assert state.is_current()
    assert draws() == first


def test_any_other_state_is_restored_as_it_is():
    draws()
    state = RandomState.capture()
    first = draws()
    state.restore()
    assert state.is_current()
    assert draws() == first


def test_making_a_seeded_state_leaves_the_generators_alone():
    before = RandomState.capture()
    RandomState.from_seed(3)
    assert before.is_current()
