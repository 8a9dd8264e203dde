"""Mutants of correct Functions are caught, and the correct ones are left alone."""

from __future__ import annotations

import functools
import random

import pytest
import torch

from gradcheck_suite import Finding, Report, Severity
from gradcheck_suite.verification import check_gradients
from tests.verification.mutants.automatic import edited_sources, mutants_of
from tests.verification.mutants.bank import Mutant, order_that_is_wrong, source_of
from tests.verification.mutants.by_hand import mutants_by_hand
from tests.verification.mutants.claims import claim_is_true
from tests.verification.mutants.originals import ORIGINALS

BY_HAND = mutants_by_hand()
# These break a promise other than the value of the gradient.
BREACHES = {"written", "layout"}
SAMPLED = 40
LEAST_SHARE = 0.97


@functools.cache
def report_of(mutant: Mutant) -> Report:
    return check_gradients(mutant.target, mutant.inputs())


def caught(mutant: Mutant) -> bool:
    report = report_of(mutant)
    least = Severity.ERROR if mutant.order == 1 else Severity.WARNING
    return bool(report.at_least(least))


@pytest.mark.parametrize("name", list(ORIGINALS))
@pytest.mark.sampled(every=4)
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


@functools.cache
def sampled_mutants(seed: int, count: int) -> list[Mutant]:
    """Draw mutants evenly over the originals."""
    draw = random.Random(seed)
    names = draw.sample(sorted(ORIGINALS), k=10)
    found = [mutant for name in names for mutant in mutants_of(name)]
    return draw.sample(found, k=min(count, len(found)))


@pytest.mark.slow
def test_mutants_made_by_hand_are_caught():
    missed = [mutant.name for mutant in BY_HAND if not caught(mutant)]
    assert len(missed) <= (1 - LEAST_SHARE) * len(BY_HAND), missed


@pytest.mark.slow
def test_a_sample_of_automatic_mutants_is_caught():
    sample = sampled_mutants(0, SAMPLED)
    missed = [mutant.name for mutant in sample if not caught(mutant)]
    assert len(missed) <= (1 - LEAST_SHARE) * len(sample), missed


CODES = {
    "nonlinear": "GCS610",
    "written": "GCS506",
    "nondeterministic": "GCS603",
    "layout": "GCS609",
    "second order": "GCS602",
}


def told(mutant: Mutant) -> Finding | None:
    """Return the finding that says what kind of mistake a wrong gradient shows."""
    findings = (f for f in report_of(mutant).findings if f.code in {"GCS601", "GCS508"})
    return next(findings, None)


def wrong_claims(mutants: list[Mutant]) -> list[str]:
    """Return the claims that the exact gradients contradict."""
    found = [(mutant, told(mutant)) for mutant in mutants]
    return [
        f"{mutant.name}: {finding.message}"
        for mutant, finding in found
        if finding is not None and claim_is_true(mutant, finding) is False
    ]


@pytest.mark.slow
def test_mutants_made_by_hand_are_named_right():
    known = [mutant for mutant in BY_HAND if mutant.kind and mutant.kind not in CODES]
    kinds = {mutant.name: told(mutant) for mutant in known}
    named = [m for m in known if kinds[m.name] and kinds[m.name].evidence["kind"] == m.kind]
    assert len(known) >= 70
    assert len(named) >= 0.97 * len(known), {
        m.name: kinds[m.name] and kinds[m.name].message for m in known if m not in named
    }
    assert wrong_claims(BY_HAND) == []


@pytest.mark.slow
def test_no_claim_on_a_sample_of_automatic_mutants_is_wrong():
    assert wrong_claims(sampled_mutants(0, SAMPLED)) == []


@pytest.mark.sweep
def test_no_claim_on_an_automatic_mutant_is_wrong():
    every = [mutant for name in ORIGINALS for mutant in mutants_of(name)]
    assert wrong_claims(every) == []


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
