from __future__ import annotations

import threading
from time import monotonic

import pytest
import torch.distributed as dist

from gradcheck_suite.auditing.distributed.channel import Channel


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "store")


def channel(path):
    return Channel(lambda: dist.FileStore(path), "test/")


def test_what_one_writes_another_reads(path):
    one, other = channel(path), channel(path)
    one.put("a", b"1")
    assert one.flush(seconds=5)
    assert other.get(["a"], seconds=5) == {"a": b"1"}
    assert [one.add("n", seconds=5), other.add("n", seconds=5)] == [1, 2]


def test_what_is_not_there_is_waited_for_and_no_longer_than_asked(path):
    one = channel(path)
    one.put("a", b"1")
    began = monotonic()
    assert one.get(["a", "b"], seconds=0.2) == {"a": b"1"}
    assert monotonic() - began < 2
    threading.Timer(0.2, lambda: one.put("b", b"2")).start()
    assert one.get(["a", "b"], seconds=5) == {"a": b"1", "b": b"2"}


def test_a_store_that_is_not_there_is_told_and_costs_nothing():
    def refuse():
        raise RuntimeError("connection refused\nby 10.0.0.1")

    one = Channel(refuse, "test/")
    began = monotonic()
    assert not one.flush(seconds=5)
    assert one.get(["a"], seconds=5) == {}
    assert one.add("n", seconds=5) is None
    one.put("a", b"1")
    assert monotonic() - began < 1
    assert one.trouble == "connection refused"


def test_a_store_that_never_answers_holds_nobody_up():
    never = threading.Event()
    one = Channel(never.wait, "test/")
    began = monotonic()
    for number in range(5000):
        one.put(str(number), b"1")
    assert not one.flush(seconds=0.1)
    assert monotonic() - began < 2
    never.set()
