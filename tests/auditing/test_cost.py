"""What an audit adds to a step, counted in calls of Python functions: figures without noise.

Times are for the benchmarks; these bounds fail when somebody puts a loop into the wrong place.
"""

from __future__ import annotations

import gc

import pytest
import torch

import gradcheck_suite as gs
from gradcheck_suite._torch_compat import SAVED_TENSORS_TELL
from gradcheck_suite.auditing.detectors.step_order.missing_zero_grad import MissingZeroGradDetector
from tests.auditing.call_counts import added_to, step_of

QUIET = {"checksum_first_steps": 0, "checksum_every": 0}


def test_the_cost_of_a_step_and_of_an_op_is_bounded():
    few = added_to("step_of", 4, **QUIET)
    many = added_to("step_of", 40, **QUIET)
    # A layer saves four tensors, each packed and unpacked, and has two parameters. Where torch does
    # not tell what was saved (2.6 to 2.9), unpacking takes another call. Twenty of a step's calls
    # are the ledger's, and as many go with each call of the model; five ask by whose name it is,
    # and one whether it recorded; one or two are a step's share of looks at states and at zeros,
    # and three take the number of the first node after it.
    answers = 0 if SAVED_TENSORS_TELL else 4
    for index, (most, fixed) in enumerate([(9.5 + answers, 136 + answers), (18, 148 + answers)]):
        per_layer = (many[index] - few[index]) / 36
        assert 0 < per_layer <= most
        assert 0 < few[index] - 4 * per_layer <= fixed


@pytest.mark.slow
def test_a_look_at_leaves_costs_a_bounded_number_for_each():
    def by_parameter(**options):
        few, many = (added_to("step_of", layers, **QUIET, **options) for layers in (4, 40))
        return [(b - a) / 72 for a, b in zip(few, many, strict=True)]

    rare, each = by_parameter(), by_parameter(look_at_leaves=True)
    # The leaves under a backward are gone through, and gradients are asked whether they are zero;
    # of how many, time decides.
    assert each[0] - rare[0] <= 25
    assert each[1] - rare[1] <= 75


@pytest.mark.slow
def test_the_cost_per_op_stays_flat():
    always = {"checksum_every": 1}  # by default, how much time contents took decides
    tenfold = [
        (b - a) / 36
        for a, b in zip(
            added_to("step_of", 4, **always), added_to("step_of", 40, **always), strict=True
        )
    ]
    hundredfold = [
        (b - a) / 360
        for a, b in zip(
            added_to("step_of", 40, **always), added_to("step_of", 400, **always), strict=True
        )
    ]
    assert hundredfold == pytest.approx(tenfold, rel=0.25)


def test_a_checksummed_step_calls_a_bounded_number_more():
    plain = added_to("step_of", 10, **QUIET)
    checked = added_to("step_of", 10, checksum_every=1)
    assert round((checked[0] - plain[0]) / 40, 6) <= 4.5
    # Memory is found by a method of a type, which is counted; a foreign function would not be. One
    # in four is a transposed weight, whose storage is asked whether all of it is there.
    assert (checked[1] - plain[1]) / 40 <= 13


def test_a_line_that_writes_again_and_again_costs_a_few_calls_each_time():
    calls, c_calls = added_to("halving", 200)
    assert calls / 200 <= 2.2  # the stand-in, and whether the write runs again
    assert c_calls / 200 <= 2.2  # the operator itself, and who runs it


@pytest.mark.parametrize("needs_gradients", [False, True])
def test_a_line_that_assigns_one_element_after_another_costs_a_few_calls_each(needs_gradients):
    calls, c_calls = added_to("filling", 200, needs_gradients)
    # The stand-in, whether it runs again, and whether it counts; its count, and the mark of it.
    assert calls / 200 <= (6.2 if needs_gradients else 3.2)
    assert c_calls / 200 <= 3.2  # the assignment itself, who runs it, and whether modes see it


def test_a_write_into_another_tensor_each_time_costs_a_bounded_number_of_calls():
    calls, c_calls = added_to("halving_another_each_time", 200)
    # The stand-in, whether it is compiled, the note, its tensor, and the clock.
    assert calls / 200 <= 6.2
    assert c_calls / 200 <= 14.5


def test_a_program_without_steps_is_looked_at_less_closely_in_time():
    x = torch.randn(4, requires_grad=True)

    def many(backwards):
        for _ in range(backwards):
            x.exp().sum().backward()

    def checksummed(backwards):
        with gs.audit(checksum_every=10) as session:
            many(backwards)
        return session.report.summary["saved_tensors_checksummed"]

    assert checksummed(20) == 20
    assert checksummed(400) < 100


def test_looking_through_a_large_graph_collects_no_garbage():
    def collections_in(run):
        begun = []

        def note(phase, _info):
            begun.append(phase == "start")

        gc.collect()
        gc.callbacks.append(note)
        try:
            run()
        finally:
            gc.callbacks.remove(note)
        return sum(begun)

    x = torch.ones(1, requires_grad=True)
    y = x
    for _ in range(3_000):
        y = y + x
    with gs.audit():
        assert collections_in(y.backward) <= 2


@pytest.mark.parametrize("enabled", [True, False])
def test_garbage_is_collected_in_a_backward_as_without_an_audit(enabled):
    states = []
    x = torch.ones(1, requires_grad=True)
    (gc.enable if enabled else gc.disable)()
    try:
        with gs.audit():
            y = x.exp()
            y.register_hook(lambda _: states.append(gc.isenabled()))
            y.backward()
            states.append(gc.isenabled())
    finally:
        gc.enable()
    assert states == [enabled, enabled]


def _detectors():
    return [each for each in gc.get_objects() if type(each) is MissingZeroGradDetector]


def test_an_audit_that_is_over_is_gone_without_the_garbage_collector():
    def audit_a_test():
        with gs.audit() as session:
            step_of(2)()
        return session.report

    audit_a_test()
    while gc.collect():
        pass  # what other tests have left
    gc.disable()
    try:
        kept = _detectors()  # by the traceback of a test that failed
        audit_a_test()
        # Those refer to the recorder, which keeps a few objects in circles of its own.
        assert len(_detectors()) == len(kept)
        assert gc.collect() <= 110
    finally:
        gc.enable()
