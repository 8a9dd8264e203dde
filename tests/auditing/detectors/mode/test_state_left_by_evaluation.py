"""Settings and statistics that an evaluation leaves to training."""

from __future__ import annotations

import pytest

from tests.auditing.loops import evaluations


@pytest.mark.parametrize(
    ("loop", "where"),
    [
        (evaluations.rate_that_forward_overwrites, evaluations.OverwritesItsRate),
        (evaluations.own_dropout_off_for_the_evaluation_and_never_on, evaluations._drop_nothing),
        (evaluations.range_that_evaluation_moves, evaluations.Range),
        (evaluations.range_that_is_copied_from_what_it_was, evaluations.Largest),
        (evaluations.center_that_is_bound_anew_in_each_call, evaluations.Centered),
    ],
)
def test_the_line_that_writes_is_named(audited, only, line_of, loop, where):
    finding = only(audited(loop), "GCS706")
    assert finding.location.line == line_of(where)
    (related,) = finding.related
    assert related.message == "put into evaluation mode here"
    assert "GCS706" not in finding.message


def test_the_words_of_a_rate(audited, only):
    finding = only(audited(evaluations.rate_that_forward_overwrites), "GCS706")
    assert finding.message == (
        "`OverwritesItsRate.rate` went from 0.3 to 0 when `model` was called in evaluation mode, "
        "and was still 0 in the training that followed; expected evaluation to leave it as it was"
    )
    assert dict(finding.evidence) == {
        "module": "OverwritesItsRate",
        "attribute": "rate",
        "before": 0.3,
        "after": 0.0,
    }


def test_the_words_of_a_buffer(audited, only):
    finding = only(audited(evaluations.range_that_evaluation_moves), "GCS706")
    assert finding.message.startswith(
        "`Range.largest` is moved here by calls of `model` in evaluation mode as by those in"
    )
    assert dict(finding.evidence) == {"module": "Range", "buffer": "largest"}
