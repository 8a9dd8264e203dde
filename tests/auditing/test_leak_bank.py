"""A part of the bank of leaks; ``benchmarks.audit_leaks`` goes through all of it."""

from __future__ import annotations

import pytest

import gradcheck_suite as gs
from tests.auditing.leaks import (  # noqa: F401 - they fill the bank
    kinds,
    kinds_in_libraries,
    look_alikes,
)
from tests.auditing.leaks.bank import LEAKS, LOOK_ALIKES

FAST = (
    "new_list_each_time",
    "nested_containers",
    "set_of_tensors",
    "concatenated",
    "nested_attribute",
    "attribute_of_self",
    "class_attribute",
    "slots",
    "a_namedtuple",
    "buffer_of_a_module",
    "global_of_another_module",
    "closure_variable",
    "default_argument",
    "attribute_of_a_function",
    "generator_frame",
    "coroutine_frame",
    "module_hook",
    "hook_of_an_object",
    "output_on_ctx",
    "object_array",
    "unbounded_cache",
    "a_fifo_queue",
    "thread_local",
    "context_variable",
    "linked_objects",
)
CORRECT = (
    "short_run_of_a_bounded_deque",
    "window_by_hand_in_a_short_run",
    "losses_of_two_players",
    "first_last_and_best",
    "queue_that_is_read",
    "cache_of_fixed_size",
    "hook_that_is_read_each_step",
    "last_output_on_each_module",
)


HELD_BY_MODULES = {
    *("attribute_of_a_function", "class_attribute", "default_argument"),
    "global_of_another_module",
}


@pytest.mark.parametrize("name", FAST)
@pytest.mark.sampled(every=5)
def test_a_leak_of_three_steps_is_found_and_its_owner_named(name, request):
    if name in HELD_BY_MODULES:
        request.getfixturevalue("objects_of_modules")
    leak = LEAKS[name]
    session = gs.audit()
    leak.run(session, lambda tensor: tensor)
    found = [finding for finding in session.findings if finding.code in leak.codes]
    assert any(leak.owner in finding.message for finding in found), session.findings
    if leak.repaired:
        session = gs.audit()
        leak.run(session, lambda tensor: tensor.detach())
        assert session.findings == ()


@pytest.mark.parametrize("name", CORRECT)
def test_nothing_is_said_of_its_look_alikes(name):
    session = gs.audit()
    LOOK_ALIKES[name](session)
    assert session.findings == ()


def test_the_bank_is_large_enough():
    assert len(LEAKS) >= 55
    assert len(LOOK_ALIKES) >= 15
