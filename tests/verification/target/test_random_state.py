"""Generators: put back exactly, rewound in every evaluation, and no business of backward."""

from __future__ import annotations

import copy
import random

import numpy as np
import pytest
import torch

from gradcheck_suite.verification import check_gradients
from gradcheck_suite.verification.target.random_state import RandomState, preserved_randomness


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


class Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        mask = (torch.rand_like(x) > 0.5).to(x)
        ctx.save_for_backward(mask)
        return x * mask

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * ctx.saved_tensors[0]


class DrawsAgain(Dropout):
    @staticmethod
    def backward(_ctx, grad_output):
        return grad_output * (torch.rand_like(grad_output) > 0.5).to(grad_output)


def drawn():
    return torch.linspace(0.5, 2.0, 12, dtype=torch.float64).requires_grad_()


def test_a_backward_that_draws_its_mask_anew_is_told_so():
    assert not check_gradients(Dropout, drawn()).findings
    (finding,) = check_gradients(DrawsAgain, drawn()).findings
    assert finding.code == "GCS601"
    assert finding.hint.startswith("backward draws random numbers of its own: save in forward")


OWN = {
    "torch": torch.Generator().manual_seed(3),
    "numpy": np.random.default_rng(3),
    "numpy, legacy": np.random.RandomState(3),
    "python": random.Random(3),
}


def noise(generator, x):
    if isinstance(generator, torch.Generator):
        return torch.rand(x.shape, generator=generator, dtype=x.dtype)
    if isinstance(generator, random.Random):
        return torch.tensor([generator.random() for _ in range(x.numel())], dtype=x.dtype)
    return torch.from_numpy(generator.uniform(size=x.shape))


class Noisy(torch.nn.Module):
    def __init__(self, generator):
        super().__init__()
        self.generator = generator

    def forward(self, x):
        return x * noise(self.generator, x)


def in_a_global(x):
    return x * noise(OWN["torch"], x)


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize("place", ["cell", "attribute", "argument", "method", "default"])
def test_generators_of_ones_own_give_the_same_in_every_evaluation(name, place):
    generator = OWN[name]
    before = noise(copy.deepcopy(generator), drawn())
    module = Noisy(generator)
    target, inputs = {
        "cell": (lambda x: x * noise(generator, x), drawn()),
        "attribute": (module, drawn()),
        "argument": (lambda x, given: x * noise(given, x), (drawn(), generator)),
        "method": (module.forward, drawn()),
        "default": (lambda x, given=generator: x * noise(given, x), drawn()),
    }[place]
    report = check_gradients(target, inputs)
    assert {verdict.status for verdict in report.verdicts} == {"pass"}
    assert torch.equal(noise(copy.deepcopy(generator), drawn()), before)


def test_generators_in_globals_are_rewound_too():
    report = check_gradients(in_a_global, drawn())
    assert {verdict.status for verdict in report.verdicts} == {"pass"}


def test_a_wrong_gradient_is_found_through_a_generator_of_ones_own():
    generator = torch.Generator().manual_seed(5)
    report = check_gradients(lambda x: (x - x.detach() / 2) * noise(generator, x), drawn())
    assert [finding.code for finding in report.findings] == ["GCS601"]
