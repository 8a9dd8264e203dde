"""Records of ranks that never ran: who is compared with whom, and what follows."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from gradcheck_suite.auditing.distributed.divergence import compare_ranks, not_compared
from gradcheck_suite.auditing.distributed.step_records import StepRecord, _grouped, _sums

SITE = {"path": "train.py", "line": 7, "function": "train", "cell": None}
SITE |= {"column": None, "end_line": None, "end_column": None}


def record(before=1, gradient=5, after=2, **fields):
    return StepRecord(
        layout=1,
        before=[before, 10 * before],
        gradients=[gradient, 10 * gradient],
        after=[after, 10 * after],
        names=["a", "b"],
        reduced=[0, 1],
        site=SITE,
        **fields,
    )


def steps(*ranks):
    return {rank: dict(enumerate(records)) for rank, records in enumerate(ranks)}


def told(found):
    return [(each.code, each.severity.value, each.evidence["ranks"]) for each in found]


def test_equal_ranks_are_silent():
    rank = [record(), record(before=2, after=3)]
    assert compare_ranks(steps(*[rank] * 4), size=4) == []


def test_the_rank_that_differs_from_most_is_named():
    equal, other = record(settings=[{"lr": 0.1}]), record(after=3, settings=[{"lr": 0.2}])
    found = compare_ranks(steps([equal], [equal], [other], [equal]), size=4)
    assert told(found) == [("GCS801", "error", [2])]
    assert "`lr` is 0.1 on ranks 0, 1 and 3 and 0.2 on rank 2" in found[0].message


def test_ranks_with_a_part_of_the_model_each_are_not_compared():
    records = steps([record()], [replace(record(gradient=6), layout=2)])
    assert compare_ranks(records, size=2) == []
    assert "as where each has a part of the model" in not_compared(records)


def test_pairs_that_begin_apart_are_compared_among_themselves():
    first, second = record(), record(before=4, gradient=7, after=8)
    parted = record(before=4, gradient=9, after=9)
    found = compare_ranks(steps([first], [first], [second], [parted]), size=4)
    assert told(found) == [("GCS802", "error", [2, 3])]


def test_what_one_rank_cannot_read_proves_nothing():
    unread = replace(record(), gradients=[-1, -1], after=[-1, -1])
    assert compare_ranks(steps([record()], [unread]), size=2) == []


def test_steps_that_one_rank_has_not_told_of_are_left_out():
    ranks = {0: {0: record(), 1: record(before=9)}, 1: {0: record()}}
    assert compare_ranks(ranks, size=2) == []


def test_parameters_that_are_equal_again_make_it_a_note():
    ranks = steps(
        [record(), record(before=2), record(before=3)],
        [record(gradient=6, after=7), record(before=7), record(before=3)],
    )
    (found,) = compare_ranks(ranks, size=2)
    assert found.severity.value == "note"
    assert found.evidence["lowered"] == (
        "the parameters were equal again before step 3, as where they are averaged at times",
    )


def test_a_record_arrives_as_it_was_sent():
    sent = record(settings=[{"lr": 0.1, "betas": [0.9, 0.99]}], writes={"1": SITE}, made=SITE)
    assert StepRecord.unpacked(sent.packed()) == sent


@pytest.mark.parametrize("layers", [32, 500])
def test_a_record_takes_as_many_bytes_for_any_model(layers):
    parameters = [each for _ in range(layers) for each in nn.Linear(4, 4).parameters()]
    groups = _grouped(parameters)
    assert len(groups) == 64
    assert sum(map(len, groups)) == 2 * layers
    sums = _sums(groups)
    sent = replace(record(), before=sums, gradients=sums, after=sums)
    assert len(sent.packed()) < 4096


def test_sums_tell_any_change_and_are_the_same_for_any_order_in_memory():
    weight = torch.randn(40, 70)
    (before,) = _sums([[weight]])
    assert _sums([[weight.t().contiguous().t()]]) == [before]
    changed = weight.clone()
    changed[3, 5] = torch.nextafter(changed[3, 5], torch.tensor(9.0))
    assert _sums([[changed]]) != [before]
    assert _sums([[weight.flip(0)]]) != [before]


def test_no_gradient_and_one_of_zeros_are_the_same():
    assert _sums([[None], [torch.zeros(3)], [torch.zeros(0)]]) == [0, 0, 0]
    assert _sums([[torch.zeros(3), torch.ones(1)]]) != [0]
    assert _sums([[torch.ones(3).to_sparse()], [torch.ones(3, device="meta")]]) == [-1, -1]
