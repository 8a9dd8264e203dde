"""Mutants of correct Functions are caught, and the correct ones are left alone."""

from __future__ import annotations

import random

import pytest
import torch

from gradcheck_suite import Severity
from gradcheck_suite.verification import check_gradients
from tests.verification.mutants.automatic import edited_sources, mutants_of
from tests.verification.mutants.bank import Mutant, order_that_is_wrong, source_of
from tests.verification.mutants.by_hand import mutants_by_hand
from tests.verification.mutants.originals import ORIGINALS

BY_HAND = mutants_by_hand()
# These break a promise other than the value of the gradient.
COMPLEX = {"ComplexMul", "ComplexExp", "SquaredModulus"}
BREACHES = {"written", "layout"}
SAMPLED = 40
LEAST_SHARE = 0.97


def checked(mutants: list[Mutant]) -> list[Mutant]:
    return [m for m in mutants if m.original.function.__name__ not in COMPLEX and m.order == 1]


def caught(mutant: Mutant) -> bool:
    report = check_gradients(mutant.target, mutant.inputs())
    least = Severity.ERROR if mutant.order == 1 else Severity.WARNING
    return bool(report.at_least(least))


@pytest.mark.parametrize("name", [name for name in ORIGINALS if name not in COMPLEX])
def test_a_correct_function_has_no_findings(name):
    original = ORIGINALS[name]
    assert order_that_is_wrong(original, original.function) is None
    whole = Mutant(name, original.function, original)
    report = check_gradients(whole.target, whole.inputs())
    assert report.findings == ()
    assert "fail" not in {verdict.status for verdict in report.verdicts}


def test_the_bank_is_large_and_every_mutant_is_really_wrong():
    assert len(BY_HAND) >= 80
    values = [mutant for mutant in BY_HAND if mutant.kind not in BREACHES]
    for mutant in values:
        assert order_that_is_wrong(mutant.original, mutant.function) == mutant.order, mutant.name


def test_an_edit_that_fits_nowhere_is_refused():
    with pytest.raises(ValueError, match="holds 'tan' 0 times"):
        source_of(ORIGINALS["Swish"], "tan", "sin")


def test_equivalent_mutants_are_left_out():
    edits = list(edited_sources(ORIGINALS["HardTanh"]))
    kept = mutants_of("HardTanh")
    assert 0 < len(kept) < len(edits)


def sampled_mutants(seed: int, count: int) -> list[Mutant]:
    """Draw mutants evenly over the originals."""
    draw = random.Random(seed)
    names = draw.sample(sorted(ORIGINALS), k=10)
    found = [mutant for name in names for mutant in mutants_of(name)]
    return draw.sample(found, k=min(count, len(found)))


def test_mutants_made_by_hand_are_caught():
    missed = [mutant.name for mutant in checked(BY_HAND) if not caught(mutant)]
    assert len(missed) <= (1 - LEAST_SHARE) * len(BY_HAND), missed


def test_a_sample_of_automatic_mutants_is_caught():
    sample = checked(sampled_mutants(0, SAMPLED))
    missed = [mutant.name for mutant in sample if not caught(mutant)]
    assert len(missed) <= (1 - LEAST_SHARE) * len(sample), missed


@pytest.mark.sweep
def test_all_automatic_mutants_are_caught():
    every = [mutant for name in ORIGINALS for mutant in mutants_of(name)]
    assert len(every) > 1000
    missed = [mutant.name for mutant in every if not caught(mutant)]
    assert len(missed) <= (1 - LEAST_SHARE) * len(every), missed


class _OneWrong(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, place):
        ctx.save_for_backward(x)
        ctx.place = place
        return x.sin()

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        grad = grad_output * x.cos()
        grad[ctx.place] *= 2
        return grad, None


def _one_of_100000_is_named(draw: int) -> bool:
    generator = torch.Generator().manual_seed(draw)
    x = torch.randn(100_000, generator=generator, dtype=torch.float64).requires_grad_()
    place = int(torch.randint(100_000, (), generator=generator))
    report = check_gradients(_OneWrong, (x, place), seed=draw, order=1, variations=())
    entries = [finding.evidence.get("entry", {}) for finding in report.findings]
    return [entry.get("input_index") for entry in entries] == [[place]]


@pytest.mark.parametrize("draw", range(2))
def test_one_wrong_element_of_100000_is_found(draw):
    assert _one_of_100000_is_named(draw)


@pytest.mark.sweep
def test_one_wrong_element_of_100000_is_found_in_200_draws():
    assert all(_one_of_100000_is_named(draw) for draw in range(200))
