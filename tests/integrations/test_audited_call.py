"""The audit of a method of one object."""

from __future__ import annotations

import copy
import inspect
import pickle
import weakref
from contextlib import contextmanager

import pytest

from gradcheck_suite.integrations.audited_call import AuditedCall


class Loop:
    def __init__(self):
        self.inside = 0

    def run(self, times=1):
        """Run."""
        if not times:
            raise ValueError("none")
        return self.inside


@contextmanager
def around(loop):
    loop.inside += 1
    try:
        yield
    finally:
        loop.inside -= 1


@pytest.fixture
def loop():
    loop = Loop()
    AuditedCall(loop, "run", around)
    return loop


def test_the_method_runs_inside_the_context(loop):
    assert (loop.run(), loop.inside) == (1, 0)
    assert Loop().run() == 0


def test_its_exception_goes_through_the_context(loop):
    with pytest.raises(ValueError, match="none"):
        loop.run(times=0)
    assert loop.inside == 0


def test_two_are_one_inside_the_other(loop):
    AuditedCall(loop, "run", around)
    assert loop.run() == 2


def test_a_method_that_the_object_was_given_is_the_one_that_runs():
    loop = Loop()
    loop.run = lambda: "given"
    AuditedCall(loop, "run", around)
    assert loop.run() == "given"


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each))])
def test_a_copy_has_its_own_method(loop, copied):
    other = copied(loop)
    assert other.run() == 0
    assert other.run.__self__ is other


def test_the_object_goes_with_its_last_reference():
    loop = Loop()
    AuditedCall(loop, "run", around)
    loop.run()
    gone, run = weakref.ref(loop), loop.run
    del loop
    assert gone() is None
    with pytest.raises(ReferenceError, match=r"that run\(\) is a method of is gone"):
        run()


def test_an_object_that_nobody_else_has_can_be_called():
    def made():
        loop = Loop()
        AuditedCall(loop, "run", around)
        return loop

    assert made().run() == 1


def test_it_looks_like_the_method(loop):
    assert loop.run.__doc__ == "Run."
    assert list(inspect.signature(loop.run).parameters) == ["self", "times"]
