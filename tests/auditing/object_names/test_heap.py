"""Searches through all objects: one list for all who ask, and no more than so much time."""

from __future__ import annotations

import ast
import gc
import json
import subprocess
import sys
import types
from itertools import count
from pathlib import Path

import pytest
import torch
from torch import nn

import gradcheck_suite as gs
from gradcheck_suite.auditing.object_names import heap as module
from gradcheck_suite.auditing.object_names.heap import Heap, SearchEndedError
from gradcheck_suite.findings import Severity
from tests import warm_python


class Thing:
    pass


@pytest.mark.parametrize("number", [1, 3, 8, 9, 300])
def test_all_referrers_are_found_however_many_objects_are_asked_for(number):
    things = [Thing() for _ in range(number)]
    holders = [{"thing": each} for each in things[::3]] + [(things[0], things[-1])]
    found = Heap().referrers(things)
    assert {id(each) for each in holders} <= {id(each) for each in found}
    assert {id(each) for each in found} <= {id(each) for each in gc.get_referrers(*things)}
    assert not any(each is things for each in found)


@pytest.mark.parametrize("number", [1, 8, 9])
def test_the_question_itself_is_no_referrer(number):
    # As Python 3.13 and later tell of it: each level of a search would find the one before.
    assert not [
        each
        for each in Heap().referrers([Thing() for _ in range(number)])
        if isinstance(each, (tuple, list))
    ]


def test_instances_are_those_of_derived_classes_too():
    class Layer(nn.Linear):
        pass

    layer, tensor = Layer(2, 2), torch.ones(1)
    found = Heap().instances(nn.Module, torch.Tensor)
    assert any(each is layer for each in found)
    assert any(each is layer.weight for each in found)
    assert any(each is tensor for each in found)
    assert all(isinstance(each, (nn.Module, torch.Tensor)) for each in found)


def test_what_the_collector_does_not_know_is_found_in_what_it_knows():
    data = bytearray(b"as long as this")
    holder = [data]
    assert any(each is data for each in Heap().referents(bytearray))
    del holder


def test_those_who_ask_in_one_moment_share_one_list(monkeypatch):
    looks = []
    listed = gc.get_objects
    monkeypatch.setattr(module.gc, "get_objects", lambda: looks.append(1) or listed())
    heap = Heap()
    things = [Thing() for _ in range(20)]
    heap.instances(nn.Module)
    heap.referrers(things)
    heap.referents(bytearray)
    assert len(looks) == 1
    heap.forget()
    heap.instances(nn.Module)
    assert len(looks) == 2


def test_an_audit_keeps_no_list_when_an_event_has_been_told(audited):
    def loop():
        net, losses = nn.Linear(2, 1), []
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(12):
            optimizer.zero_grad()
            loss = net(torch.ones(1, 2)).sum()
            loss.backward()
            optimizer.step()
            losses.append(loss)

    session = audited(loop)
    assert session.findings
    assert session._recorder.heap.everything is None


def test_no_search_begins_or_goes_on_when_the_time_is_used_up(monkeypatch):
    monkeypatch.setattr(module, "_AT_LEAST", 2.0)
    ticks = count(step=1.5)
    monkeypatch.setattr(module, "thread_time", lambda: next(ticks))
    heap = Heap()
    heap.instances(nn.Module)
    assert not heap.not_covered()
    with pytest.raises(SearchEndedError):
        heap.referents(bytearray)
    for search in (heap.instances, heap.referents):
        with pytest.raises(SearchEndedError):
            search(nn.Module)
    with pytest.raises(SearchEndedError):
        heap.referrers([heap])
    (line,) = heap.not_covered()
    assert line.startswith("who holds what, beyond ")
    assert "no more than 2 s are spent on that" in line


def test_a_long_run_may_search_for_its_share_of_the_time(monkeypatch):
    monkeypatch.setattr(module, "_AT_LEAST", 2.0)
    now = [100.0]
    monkeypatch.setattr(module, "perf_counter", lambda: now[0])
    ticks = count()
    monkeypatch.setattr(module, "thread_time", lambda: next(ticks))
    heap = Heap(overhead=5.0)
    heap.begin()
    for _ in range(3):
        if not heap.is_exhausted:
            heap.instances(nn.Module)
    assert heap.is_exhausted
    assert "2 s or 5 % of the run are" in heap.not_covered()[0]
    now[0] += 1_000
    assert not heap.is_exhausted


def test_whoever_wants_the_whole_overhead_gets_every_search(monkeypatch):
    ticks = count(step=1_000)
    monkeypatch.setattr(module, "thread_time", lambda: next(ticks))
    heap = Heap(overhead=float("inf"))
    for _ in range(5):
        heap.instances(nn.Module)
    assert heap.not_covered() == []


def train(steps, keep):
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = net(torch.randn(3, 4)).pow(2).mean()
        loss.backward()
        optimizer.step()
        keep(loss)


def test_a_leak_is_told_without_its_holder_where_there_is_no_time_to_look(
    audited, only, monkeypatch
):
    monkeypatch.setattr(module, "_AT_LEAST", 0.0)
    losses = []
    session = audited(lambda: train(40, losses.append), overhead=0.0)
    finding = only(session, "GCS201")
    assert finding.severity is Severity.WARNING
    assert finding.message.startswith("the graphs of 40 backwards are still alive")
    assert "was not searched for" in finding.message
    assert finding.location.path == __file__
    assert len([line for line in session.report.not_covered if "who holds what" in line]) == 1


def test_few_graphs_may_be_held_by_different_things_and_are_told_as_not_covered(
    audited, monkeypatch
):
    monkeypatch.setattr(module, "_AT_LEAST", 0.0)
    losses = []
    session = audited(lambda: train(12, losses.append), overhead=0.0)
    assert session.findings == ()
    assert any("who holds what" in line for line in session.report.not_covered)


@pytest.mark.slow
def test_a_holder_that_was_found_is_told_where_there_is_no_time_for_its_name(
    audited, only, monkeypatch
):
    known = Heap.referrers

    def once(self, things):
        if len(things) == 1:
            raise SearchEndedError
        return known(self, things)

    log = {"losses": []}
    message = only(audited(lambda: train(40, log["losses"].append)), "GCS201").message
    assert message.startswith('list `log["losses"]` ')
    monkeypatch.setattr(Heap, "referrers", once)
    message = only(audited(lambda: train(40, log["losses"].append)), "GCS201").message
    assert message.startswith("a list (")


@pytest.mark.slow
def test_an_audit_of_many_cloned_networks_spends_no_more_on_searches_than_allowed():
    program = Path(__file__).parents[2] / "data" / "cloned_networks.py"
    ended = warm_python.run([program, "200"])
    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stdout)
    assert told["findings"] == []
    # Two seconds for searches, and what it takes to tell of a thousand optimizers.
    assert told["audited"] < 5 * told["bare"] + 4, told


def test_nobody_else_in_the_audit_searches():
    searches = {"get_objects", "get_referrers"}
    folder = Path(gs.__file__).parent / "auditing"
    found = {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr in searches
    }
    assert found == {"object_names/heap.py"}


AFTER_ASYNCIO = """
import asyncio, gc
from gradcheck_suite.auditing.object_names.heap import Heap

async def wait():
    future = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(future.set_result, None)
    await future

async def main():
    await asyncio.gather(*(wait() for _ in range(50)))

class Thing:
    pass

asyncio.run(main())
things = [Thing() for _ in range(20)]
heap = Heap()
heap.referrers(things), heap.referrers(things[:2]), heap.referents(Thing)
for _ in range(3):
    heap.collect(2)
    heap.referents(Thing)
asyncio.run(main())
print("came to its end")
"""


def test_collections_end_after_searches_where_asyncio_has_run():
    """In CPython 3.12 they did not: see ``_with_freed_objects``."""
    done = subprocess.run(
        [sys.executable, "-c", AFTER_ASYNCIO],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout == "came to its end\n", done.stderr


def test_the_references_of_an_unsafe_module_are_never_read(monkeypatch):
    unsafe, read = types.ModuleType("unsafe"), []
    things = unsafe.things = [Thing() for _ in range(20)]
    original = gc.get_referents

    def noted(*objects):
        read.extend(map(id, objects))
        return original(*objects)

    monkeypatch.setattr(module, "_with_freed_objects", lambda: unsafe)
    monkeypatch.setattr(gc, "get_referents", noted)
    heap = Heap()
    found = [*heap.referrers(things), *heap.referrers([vars(unsafe)]), *heap.referents(Thing)]
    assert id(unsafe) not in read
    assert read
    assert not any(each is unsafe for each in found)
