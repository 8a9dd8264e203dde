"""A correct loop made wrong in one place, once for each way of doing so; benchmarks do them all."""

from __future__ import annotations

import pytest

from benchmarks.audit_loops import is_found, loop_mutants
from tests.auditing.loops import everyday, scaling  # noqa: F401 - they fill the bank

SUBJECTS = ("epochs_with_validation:", "two_backwards", "best_weights", "amp_accumulation", "amp:")
"""Small loops with all that can be moved in them."""


def first_of_each():
    seen = {}
    for mutant in loop_mutants(("everyday", "scaling")):
        # Its epochs are of three batches: too few graphs at once to be told.
        too_short = mutant.operator == "add up the loss"
        if not too_short and any(subject in mutant.name for subject in SUBJECTS):
            seen.setdefault(mutant.operator, mutant)
    return list(seen.values())


@pytest.mark.parametrize("mutant", first_of_each(), ids=lambda mutant: mutant.name)
@pytest.mark.usefixtures("objects_of_modules")
@pytest.mark.sampled(every=4)
def test_a_mutant_is_found_under_its_code(mutant):
    assert is_found(mutant)


@pytest.mark.slow
def test_there_are_mutants_of_many_kinds():
    assert len(first_of_each()) >= 10
