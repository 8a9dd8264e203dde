from __future__ import annotations

import pytest

from gradcheck_lint.engine import lint_source
from gradcheck_lint.rules import RULES
from gradcheck_suite import catalogue


@pytest.mark.parametrize("reference", RULES, ids=lambda reference: reference.slug)
def test_example_of_the_catalogue_is_found_and_its_correction_is_clean(reference):
    entry = catalogue.find(reference.code)
    found = {finding.code for finding in lint_source(entry.example.encode(), "example.py")}
    assert found == {reference.code}
    assert lint_source(entry.instead.encode(), "instead.py") == ()
