from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradcheck_suite import catalogue


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("zero_grad", ("missing-zero-grad", "zero-grad-misplaced")),
        ("zero grad", ("missing-zero-grad", "zero-grad-misplaced")),
        ("zeroGrad", ("missing-zero-grad", "zero-grad-misplaced")),
        ("mising-zero-grd", ("missing-zero-grad",)),
        ("MISSING_ZERO_GRAD", ("missing-zero-grad",)),
        ("leak", ("graph-kept",)),
        ("memory leak", ("graph-kept",)),
        ("retain_graph", ("retain-graph",)),
        ("no_grad", ("forward-under-no-grad",)),
        ("clipping", ("clip-misplaced",)),
        ("nan", ("non-finite-gradient",)),
        ("GradScaler", ("scaler-misuse",)),
        ("ModuleList", ("unregistered-module",)),
        ("hidden state", ("state-not-detached",)),
        ("volatile", ("legacy-volatile",)),
        ("dropout", ("dropout-ignores-eval",)),
    ],
)
def test_words_and_slips_lead_to_slugs(name, first):
    assert catalogue.suggest(name)[: len(first)] == first


@pytest.mark.parametrize(
    ("name", "codes"),
    [
        ("301", ("GCS301",)),
        ("gcs-301", ("GCS301",)),
        ("GCS 301", ("GCS301",)),
        ("GCS3O1", ("GCS301",)),
        ("GCSl01", ("GCS101",)),
        ("GCS399", ("GCS319", "GCS309")),
    ],
)
def test_something_like_a_code_leads_to_codes(name, codes):
    assert catalogue.suggest(name) == codes


def test_the_number_of_a_family_leads_to_its_first_codes():
    family = [entry.code for entry in catalogue.ENTRIES if entry.code.startswith("GCS7")]
    assert list(catalogue.suggest("GCS7")) == family[:5]


@pytest.mark.parametrize("name", ["", "   ", "of", "xyzzy", "GCS", "GCS999", "-", "\N{SNOWMAN}"])
def test_nothing_near_gives_nothing_or_a_few(name):
    assert catalogue.suggest(name) == () or name == "GCS"


@settings(deadline=None, max_examples=50)
@given(st.text(max_size=40))
def test_any_name_gives_at_most_five_known_names(name):
    suggestions = catalogue.suggest(name)
    assert len(suggestions) <= 5
    assert len(set(suggestions)) == len(suggestions)
    assert all(catalogue.find(suggestion) is not None for suggestion in suggestions)


@settings(deadline=None, max_examples=50)
@given(st.sampled_from(catalogue.ENTRIES), st.data())
@pytest.mark.slow
def test_a_slip_of_one_letter_finds_the_slug(entry, data):
    at = data.draw(st.integers(0, len(entry.slug) - 1))
    slipped = entry.slug[:at] + entry.slug[at + 1 :]
    assert entry.slug in catalogue.suggest(slipped)
