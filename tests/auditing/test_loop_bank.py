"""Each loop of the bank: the mistake is found, once, at its line; correct ones pass in silence."""

from __future__ import annotations

import inspect
import warnings

import pytest

from tests.auditing.loops import (  # noqa: F401 - they fill the bank
    clipping,
    order,
    owners_and_modes,
    scaling,
    schedules,
)
from tests.auditing.loops.bank import BUGGY, CLEAN

CODES = {f"GCS{number}" for number in (301, 302, 303, 304, 305, 306, 307, 308, 309, 310, 701, 702)}


def run_quietly(loop):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            loop()
        except (AssertionError, RuntimeError) as error:
            assert any(word in str(error) for word in ("scale", "inf checks", "update()")), error  # noqa: PT017 - torch refuses some


@pytest.mark.parametrize("name", BUGGY)
def test_the_mistake_is_found(audited, line_of, name):
    code, loop = BUGGY[name]
    session = audited(lambda: run_quietly(loop))
    found = [finding for finding in session.findings if finding.code == code]
    assert found, session.findings
    if "# <- here" in inspect.getsource(loop):
        assert {finding.location.line for finding in found} == {line_of(loop)}, found
    assert {f.code for f in session.findings} & CODES <= {code, *ALSO.get(name, ())}


ALSO = {
    "head_replaced": ["GCS308"],
    "model_built_again": ["GCS307"],
    "state_assigned": ["GCS307"],
    "copy_trained_in_place_of_the_model": ["GCS307"],
}
"""What else is true of a loop."""


@pytest.mark.parametrize("name", CLEAN)
def test_nothing_is_said(audited, name):
    session = audited(lambda: run_quietly(CLEAN[name]))
    assert session.findings == ()


def test_the_bank_is_large_enough():
    assert len(BUGGY) >= 50
    assert len(CLEAN) >= 30
