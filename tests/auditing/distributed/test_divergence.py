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


def with_buffers(value, **fields):
    described = {"buffer_names": ["net.center"], "buffer_layout": 1, "weights": [0], "exchanged": 1}
    return record(**{**described, "buffers": [value], **fields})


def test_buffers_that_nothing_changes_are_to_be_equal():
    found = compare_ranks(steps([with_buffers(1)] * 2, [with_buffers(2)] * 2), size=2)
    assert told(found) == [("GCS801", "warning", [1])]
    assert "different values of the buffers net.center" in found[0].message.replace("`", "")


@pytest.mark.parametrize("fields", [{"weights": []}, {"exchanged": 0, "reduced": []}])
def test_counts_and_buffers_of_ranks_that_share_nothing_may_differ(fields):
    ranks = [[replace(with_buffers(value), **fields)] * 2 for value in (1, 2)]
    assert compare_ranks(steps(*ranks), size=2) == []


def test_a_buffer_that_only_one_rank_has_written_is_told_at_its_line():
    wrote = replace(with_buffers(2), buffer_writes={"0": {**SITE, "line": 9}})
    found = compare_ranks(steps([with_buffers(1)] * 2, [with_buffers(1), wrote]), size=2)
    assert told(found) == [("GCS801", "warning", [1])]
    assert found[0].location.line == 9


def test_a_buffer_that_each_rank_writes_is_a_fact():
    ranks = [[with_buffers(base + n) for n in range(3)] for base in (1, 5)]
    (found,) = compare_ranks(steps(*ranks), size=2)
    assert found.severity.value == "note"
    assert "nothing makes it equal" in found.message
    ranks = [[with_buffers(base + n, overwritten=[0]) for n in range(3)] for base in (1, 5)]
    (found,) = compare_ranks(steps(*ranks), size=2)
    assert "DistributedDataParallel overwrites it with that of rank 0" in found.message


def test_statistics_that_the_wrapper_overwrites_and_those_made_equal_at_times_are_silent():
    of_norm = {"overwritten": [0], "statistics": [0]}
    ranks = [[with_buffers(base + n, **of_norm) for n in range(3)] for base in (1, 5)]
    assert compare_ranks(steps(*ranks), size=2) == []
    at_times = [[with_buffers(1), with_buffers(value), with_buffers(3)] for value in (2, 7)]
    assert compare_ranks(steps(*at_times), size=2) == []


def test_states_that_differ_are_told_before_they_have_any_effect():
    same, other = record(state=[1, 1], exchanged=1), record(state=[1, 2], exchanged=1)
    found = compare_ranks(steps([same, same], [same, other]), size=2)
    assert told(found) == [("GCS801", "error", [1])]
    assert found[0].evidence["step"] == 2
    assert "different states of the optimizer for `b`" in found[0].message.replace("b;", "`b`;")


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
    norms = [nn.BatchNorm1d(4) for _ in range(layers)]
    buffers = _sums(_grouped([each.running_mean for each in norms], 12)) + [2**32] * 4
    names = [f"model.module.blocks[{n}].a_module_with_a_name.running_mean" for n in range(16)]
    sent = replace(
        record(buffer_names=names, buffers=buffers), before=sums, gradients=sums, after=sums
    )
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
