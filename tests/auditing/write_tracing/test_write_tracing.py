"""The watch over suspects: its parts one by one, and its manners towards the program."""

from __future__ import annotations

import os
import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import gradcheck_suite as gs
from gradcheck_suite.auditing.saved_tensors.checksums import fingerprint
from gradcheck_suite.auditing.saved_tensors.saved_tensor import CHECKSUMMED, PackedTensor
from gradcheck_suite.auditing.write_tracing import lines as monitored
from gradcheck_suite.auditing.write_tracing import memory
from gradcheck_suite.auditing.write_tracing import tracer as threads
from gradcheck_suite.auditing.write_tracing import tracer as watch
from gradcheck_suite.auditing.write_tracing.lines import (
    MonitoredLines,
    TracedLines,
    offset_in,
    place_of,
    watched_place,
)
from gradcheck_suite.auditing.write_tracing.memory import Change, WatchedMemory
from gradcheck_suite.auditing.write_tracing.tracer import Suspects
from gradcheck_suite.errors import UsageError

traces = pytest.mark.skipif(hasattr(sys, "monitoring"), reason="settrace is for Python before 3.12")


def holder_of(tensor, site=None):
    packed = PackedTensor()
    packed.tensor = tensor
    packed.version = tensor._version
    packed.fingerprint = fingerprint(tensor)
    packed.checked_address = tensor.data_ptr()
    packed.address = CHECKSUMMED
    packed.site = site
    return packed


def place():
    return place_of(sys._getframe(1))


class TestMemory:
    @pytest.fixture
    def watched(self):
        return WatchedMemory(lambda _tensor, place: Change(1, memory.site_of(place), True, False))

    @pytest.mark.parametrize("size", [3, 9000])
    def test_the_first_line_after_which_it_differs(self, watched, size):
        tensor = torch.ones(size)
        packed = holder_of(tensor)
        watched.add(packed, most_bytes=1 << 20)
        watched.look(place())
        assert watched.change_of(packed) is None
        tensor.numpy()[1] = 2
        here = place()
        watched.look(here)
        watched.look(place())
        change = watched.change_of(packed)
        assert change.site == (here[0], offset_in(here))

    def test_what_was_put_back_is_unchanged(self, watched):
        tensor = torch.ones(3)
        packed = holder_of(tensor)
        watched.add(packed, most_bytes=100)
        for value in (2, 1):
            tensor.numpy()[0] = value
            watched.look(place())
        assert watched.change_of(packed) is None

    def test_a_version_that_moved_is_a_change(self, watched):
        tensor = torch.ones(3)
        packed = holder_of(tensor)
        watched.add(packed, most_bytes=100)
        tensor.add_(0)
        watched.look(place())
        assert watched.change_of(packed) is not None

    def test_savers_of_one_memory_share_a_look(self, watched):
        tensor = torch.ones(3)
        one, other = holder_of(tensor), holder_of(tensor)
        for packed in (one, other):
            watched.add(packed, most_bytes=100)
        watched.look(place())
        assert watched.work == 1
        tensor.numpy()[0] = 3
        watched.look(place())
        assert watched.change_of(one) == watched.change_of(other) is not None

    def test_memory_that_is_refilled_before_it_is_saved_again(self, watched):
        tensor = torch.ones(3)
        old = holder_of(tensor)
        watched.add(old, most_bytes=100)
        tensor.numpy()[0] = 3
        new = holder_of(tensor)
        watched.add(new, most_bytes=100)
        watched.look(place())
        assert watched.change_of(old) is not None
        assert watched.change_of(new) is None

    def test_nothing_is_kept_alive(self, watched):
        packed = holder_of(torch.ones(3))
        watched.add(packed, most_bytes=100)
        assert watched
        assert watched.watches(packed)
        del packed
        watched.look(place())
        assert not watched

    def test_what_is_too_much_is_left_out(self, watched):
        first, second = holder_of(torch.ones(10)), holder_of(torch.ones(10))
        watched.add(first, most_bytes=50)
        watched.add(second, most_bytes=50)
        assert watched.left_out == 1
        assert not watched.watches(second)
        del first
        watched.add(second, most_bytes=50)
        assert watched.watches(second)

    def test_freed_memory_says_nothing_until_it_is_back(self, watched):
        tensor = torch.ones(3)
        packed = holder_of(tensor)
        watched.add(packed, most_bytes=100)
        storage = tensor.untyped_storage()
        storage.resize_(0)
        watched.look(place())
        assert watched.change_of(packed) is None
        storage.resize_(12)
        tensor.numpy()[:] = 5
        watched.look(place())
        assert watched.change_of(packed) is not None

    def test_after_lines_that_could_not_be_followed_no_line_is_named(self, watched, monkeypatch):
        tensor = torch.ones(3)
        packed = holder_of(tensor)
        watched.add(packed, most_bytes=100)
        monkeypatch.setattr(memory, "jit_is_tracing", lambda: True)
        tensor.numpy()[0] = 3
        watched.look(place())
        assert watched.change_of(packed) is None
        monkeypatch.undo()
        watched.look(place())
        assert watched.change_of(packed).site is None

    def test_modes_of_the_users_see_nothing(self, watched):
        from torch.overrides import TorchFunctionMode
        from torch.utils._python_dispatch import TorchDispatchMode

        seen = []

        class Functions(TorchFunctionMode):
            def __torch_function__(self, function, types, args=(), kwargs=None):
                seen.append(function)
                return function(*args, **(kwargs or {}))

        class Operators(TorchDispatchMode):
            def __torch_dispatch__(self, function, types, args=(), kwargs=None):
                seen.append(function)
                return function(*args, **(kwargs or {}))

        tensor = torch.ones(9000)
        packed = holder_of(tensor)
        watched.add(packed, most_bytes=1 << 20)
        view = tensor.numpy()
        with Functions(), Operators():
            view[0] = 7
            watched.look(place())
        assert seen == []
        assert watched.change_of(packed) is not None


def test_suspects_widen_from_watch_to_watch():
    suspects = Suspects()
    here, there = ("code", 1), ("code", 2)
    found = holder_of(torch.ones(3), here)
    other_shape, elsewhere = holder_of(torch.ones(4), here), holder_of(torch.ones(3), there)
    covered = []
    for _ in range(3):
        suspects.add(found)
        suspects.begin_watch()
        covered.append([suspects.cover(h) for h in (found, other_shape, elsewhere)])
        suspects.end_watch()
    assert covered == [[True, False, False], [True, True, False], [True, True, True]]
    suspects.add(found)
    assert not suspects


def test_a_settled_suspect_is_not_suspected_again():
    suspects = Suspects()
    found, other = holder_of(torch.ones(3), "here"), holder_of(torch.ones(4), "here")
    suspects.add(found)
    suspects.add(other)
    suspects.begin_watch()
    suspects.settle(found)
    assert suspects
    suspects.settle(other)
    suspects.settle(other)
    suspects.add(found)
    assert not suspects


def function(values):
    first = values[0]
    values[0] = first + 1
    return values


class TestTracedLines:
    """The handlers are called by hand as well, as a coverage tool sees nothing inside of them."""

    @pytest.fixture
    def ended(self):
        return []

    @pytest.fixture
    def lines(self, ended):
        return TracedLines(ended.append, lambda code: code is function.__code__)

    @pytest.mark.usefixtures("untraced")
    def test_it_gives_way_to_somebody_elses_trace_function(self, lines):
        def theirs(frame, event, argument):
            return None

        sys.settrace(theirs)
        try:
            assert not lines.start()
            assert sys.gettrace() is theirs
            lines.stop()
            assert sys.gettrace() is theirs
        finally:
            sys.settrace(None)

    @pytest.mark.usefixtures("untraced")
    def test_every_line_of_watched_code(self, lines, ended):
        assert lines.start()
        try:
            function([1])
            thread = threading.Thread(target=function, args=([1],))
            thread.start()
            thread.join()
        finally:
            lines.stop()
        assert sys.gettrace() is None
        assert threading.gettrace() is None
        first = function.__code__.co_firstlineno
        assert [number - first for _, number in ended] == [0, 1, 2, 3] * 2

    @pytest.mark.usefixtures("untraced")
    def test_frames_get_their_own_trace_function_back(self):
        frame = sys._getframe()

        def mine(frame, event, argument):
            return mine

        frame.f_trace = mine
        lines = TracedLines(lambda _place: None, lambda code: code is frame.f_code)
        lines.start()
        assert frame.f_trace is not mine
        lines.stop()
        assert frame.f_trace is mine

    def test_by_hand(self, lines, ended, monkeypatch):
        traced = []
        monkeypatch.setattr(sys, "settrace", traced.append)
        monkeypatch.setattr(sys, "gettrace", lambda: None)
        monkeypatch.setattr(threading, "settrace", lambda _function: None)
        monkeypatch.setattr(threading, "gettrace", lambda: None)
        assert lines.start()
        frame = SimpleNamespace(
            f_code=function.__code__, f_lineno=7, f_lasti=0, f_back=None, f_trace=None
        )
        strange = SimpleNamespace(f_code=place.__code__, f_lineno=1, f_lasti=0)
        assert lines._entered(strange, "call", None) is None
        go_on = lines._entered(frame, "call", None)
        frame.f_lineno = 8
        assert go_on(frame, "line", None) is go_on
        frame.f_lineno = None
        go_on(frame, "line", None)
        go_on(frame, "return", None)
        first = function.__code__.co_firstlineno
        assert [number for _, number in ended] == [7, 8, first]
        assert lines.follows(threading.get_ident())
        lines.stop()
        assert go_on(frame, "line", None) is None
        assert lines._entered(frame, "call", None) is None
        assert traced[-1] is None

    def test_start_and_stop_in_a_frame_that_is_watched(self, monkeypatch):
        set_now = {"here": None, "threads": None}
        monkeypatch.setattr(sys, "settrace", lambda f: set_now.update(here=f))
        monkeypatch.setattr(sys, "gettrace", lambda: set_now["here"])
        monkeypatch.setattr(threading, "settrace", lambda f: set_now.update(threads=f))
        monkeypatch.setattr(threading, "gettrace", lambda: set_now["threads"])
        frame = sys._getframe()
        before = frame.f_trace
        lines = TracedLines(lambda _place: None, lambda code: code is frame.f_code)
        set_now["threads"] = print
        assert not lines.start()
        set_now["threads"] = None
        assert lines.start()
        assert set_now["here"] == set_now["threads"] == lines._entered
        lines.stop()
        assert set_now == {"here": None, "threads": None}
        assert frame.f_trace is before

    def test_a_line_that_ends_the_watch(self, monkeypatch):
        monkeypatch.setattr(sys, "gettrace", lambda: None)
        monkeypatch.setattr(sys, "settrace", lambda _function: None)
        monkeypatch.setattr(threading, "gettrace", lambda: None)
        monkeypatch.setattr(threading, "settrace", lambda _function: None)
        lines = TracedLines(lambda _place: lines.stop(), lambda code: code is function.__code__)
        lines.start()
        frame = SimpleNamespace(f_code=function.__code__, f_lineno=7, f_back=None, f_trace=None)
        assert lines._entered(frame, "call", None) is not None
        assert lines._went_on(frame, "line", None) is None


class FakeMonitoring:
    """``sys.monitoring`` as far as it is used, for Pythons that lack it."""

    DISABLE = object()
    events = SimpleNamespace(
        LINE=1, PY_START=2, PY_RESUME=4, PY_RETURN=8, PY_YIELD=16, PY_THROW=32, PY_UNWIND=64
    )

    def __init__(self, taken=()):
        self.tools = dict.fromkeys(taken, "other")
        self.callbacks = {}
        self.wanted = {}

    def get_tool(self, number):
        return self.tools.get(number)

    def use_tool_id(self, number, name):
        assert number not in self.tools
        self.tools[number] = name

    def free_tool_id(self, number):
        del self.tools[number]

    def register_callback(self, _number, event, callback):
        self.callbacks[event] = callback

    def set_events(self, number, wanted):
        self.wanted[number] = wanted


class TestMonitoredLines:
    @pytest.fixture
    def fake(self, monkeypatch):
        fake = FakeMonitoring()
        monkeypatch.setattr(sys, "monitoring", fake, raising=False)
        return fake

    def test_the_events_of_watched_code(self, fake):
        ended = []
        own = sys._getframe().f_code
        lines = MonitoredLines(ended.append, lambda code: code is own)
        assert lines.start()
        assert fake.wanted == {4: 127}
        events, call = fake.events, fake.callbacks
        strange = function.__code__
        for event in (events.LINE, events.PY_START, events.PY_RESUME):
            assert call[event](strange, 0) is fake.DISABLE
        for event in (events.PY_RETURN, events.PY_YIELD):
            assert call[event](strange, 0, None) is fake.DISABLE
        for event in (events.PY_THROW, events.PY_UNWIND):
            assert call[event](strange, 0, None) is None
        assert ended == []
        call[events.LINE](own, 11)
        call[events.LINE](own, 12)
        call[events.PY_START](own, 0)
        call[events.PY_THROW](own, 0, None)
        assert [number for _, number in ended[1:3]] == [11, 12]
        call[events.PY_RETURN](own, 0, None)
        call[events.PY_UNWIND](own, 0, None)
        assert lines.follows(0)
        lines.stop()
        lines.stop()
        assert fake.tools == {}
        assert fake.wanted == {4: 0}
        assert set(call.values()) == {None}

    def test_it_takes_a_number_that_is_free(self, fake):
        fake.tools[4] = "other"
        lines = MonitoredLines(lambda _place: None, lambda _code: False)
        assert lines.start()
        assert fake.tools[3] == monitored._NAME
        other = MonitoredLines(lambda _place: None, lambda _code: False)
        assert not other.start()

    def test_without_monitoring_it_says_so(self, monkeypatch):
        monkeypatch.delattr(sys, "monitoring", raising=False)
        assert not MonitoredLines(lambda _place: None, lambda _code: False).start()

    @pytest.mark.usefixtures("fake")
    def test_the_watch_prefers_it(self):
        lines = watch._lines(lambda _place: None, lambda _code: False)
        assert isinstance(lines, MonitoredLines)


class ByHand:
    """Lines that end when the test says so."""

    follow = True

    def __init__(self, ended, is_watched):
        self.ended, self.is_watched = ended, is_watched
        self.running = False
        ByHand.last = self

    def start(self):
        self.running = self.follow
        return self.follow

    def stop(self):
        self.running = False

    def follows(self, _thread):
        return True


@pytest.fixture
def by_hand(monkeypatch):
    monkeypatch.setattr(watch, "_lines", ByHand)
    # None are made until lines are followed.
    ByHand(lambda _place: None, lambda _code: False)
    return ByHand


def corrupted_step(array, layer, write=True):
    loss = layer(torch.from_numpy(array)).sum()
    if write:
        array += 1
        ByHand.last.ended(place())
    loss.backward()


class TestWatch:
    @pytest.fixture
    def array(self):
        return np.ones((2, 3), dtype=np.float32)

    @pytest.fixture
    def layer(self):
        return torch.nn.Linear(3, 1)

    def test_a_corruption_arms_it_and_a_named_writer_disarms_it(self, by_hand, array, layer):
        running = []
        with gs.audit() as session:
            running.append(by_hand.last.running)
            for _ in range(3):
                corrupted_step(array, layer)
                running.append(by_hand.last.running)
        assert running == [False, True, False, False]
        (finding,) = session.findings
        assert finding.evidence["writer"] == "`ByHand.last.ended(place())`"
        assert finding.evidence["count"] == 3

    def test_from_the_start_it_ends_with_the_first_steps(self, by_hand, array, layer):
        running = []
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        with gs.audit(watch_writers="from_start", checksum_first_steps=2):
            for _ in range(4):
                running.append(by_hand.last.running)
                optimizer.zero_grad()
                corrupted_step(array, layer, write=False)
                optimizer.step()
        assert running == [True, True, True, False]

    def test_it_ends_after_some_steps_in_vain(self, by_hand, array, layer):
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        running = []
        with gs.audit() as session:
            for step in range(6):
                optimizer.zero_grad()
                loss = layer(torch.from_numpy(array)).sum()
                if not step:
                    array += 1
                loss.backward()
                optimizer.step()
                running.append(by_hand.last.running)
        assert running[:3] == [True] * 3
        assert not running[-1]
        assert "not seen" in session.findings[0].message

    def test_it_ends_when_it_has_taken_long(self, by_hand, array, layer, monkeypatch):
        monkeypatch.setattr(watch, "_MOST_WORK", 2)
        with gs.audit(watch_writers="from_start") as session:
            loss = layer(torch.from_numpy(array)).sum()
            for _ in range(4):
                by_hand.last.ended(place())
            assert not by_hand.last.running
            array += 1
            loss.backward()
        assert any("had taken seconds" in line for line in session.report.not_covered)

    def test_a_mistake_of_its_own_ends_it_and_is_told(self, by_hand, array, layer, monkeypatch):
        def broken(self, place):
            raise ValueError("our own")

        monkeypatch.setattr(WatchedMemory, "look", broken)
        with gs.audit(watch_writers="from_start") as session:
            corrupted_step(array, layer)
            assert not by_hand.last.running
        assert any("our own" in line for line in session.report.not_covered)

    @pytest.mark.usefixtures("by_hand")
    def test_where_lines_cannot_be_followed_the_report_says_why(self, array, layer, monkeypatch):
        monkeypatch.setattr(ByHand, "follow", False)
        with gs.audit() as session:
            for _ in range(2):
                corrupted_step(array, layer)
        assert any("the lines of writers" in line for line in session.report.not_covered)
        assert "not seen" in session.findings[0].message

    @pytest.mark.usefixtures("by_hand")
    def test_where_every_writer_took_note_nothing_is_said_of_it(self, monkeypatch):
        monkeypatch.setattr(ByHand, "follow", False)
        with gs.audit() as session:
            for _ in range(2):
                h = torch.ones(3, requires_grad=True).exp()
                loss = (h * h).sum()
                h.data.mul_(2)
                loss.backward()
        assert session.findings[0].evidence["writer"] == "mul_()"
        assert not [line for line in session.report.not_covered if "the lines of" in line]

    @pytest.mark.usefixtures("by_hand")
    def test_what_is_too_large_is_said(self, array, layer, monkeypatch):
        monkeypatch.setattr(watch, "_MOST_BYTES_OF_ALL", 1)
        with gs.audit(watch_writers="from_start") as session:
            corrupted_step(array, layer)
            corrupted_step(array, layer)
        assert any("are not watched line by line" in line for line in session.report.not_covered)
        assert session.findings[0].evidence["writer"] is not None

    @pytest.mark.usefixtures("by_hand")
    def test_a_thread_beside_makes_the_line_uncertain(self, array, layer, monkeypatch):
        monkeypatch.setattr(watch, "another_may_have_written", lambda _follows: True)
        with gs.audit(watch_writers="from_start") as session:
            corrupted_step(array, layer)
        assert "or by a thread that ran beside it" in session.findings[0].message

    def test_writers_that_nobody_asked_for(self, by_hand, array, layer):
        with gs.audit(name_writers=False, watch_writers="from_start") as session:
            assert not by_hand.last.running
            corrupted_step(array, layer)
            assert not by_hand.last.running
        assert "not seen" in session.findings[0].message

    def test_after_max_steps_it_is_over(self, by_hand, array, layer):
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        with gs.audit(watch_writers="from_start", max_steps=1):
            corrupted_step(array, layer, write=False)
            optimizer.step()
            assert not by_hand.last.running

    def test_a_child_process_is_not_watched(self, by_hand):
        with gs.audit(watch_writers="from_start"):
            watch._leave_child()
            assert not by_hand.last.running


def test_a_debugger_stays_in_charge(untraced):
    if hasattr(sys, "monitoring"):
        pytest.skip("both can follow lines from Python 3.12 on")
    events = []

    def theirs(frame, event, argument):
        events.append(event)
        return theirs

    sys.settrace(theirs)
    try:
        with gs.audit(watch_writers="from_start"):
            function([1])
        assert sys.gettrace() is theirs
    finally:
        sys.settrace(None)
    assert "line" in events


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_every_trace_is_gone_after_an_exception(untraced, error):
    frame = sys._getframe()

    def work():
        torch.ones(3, requires_grad=True).exp().sum().backward()
        raise error("stop")

    with pytest.raises(error), gs.audit(watch_writers="from_start"):
        work()
    assert sys.gettrace() is None
    assert threading.gettrace() is None
    assert frame.f_trace is None


def test_a_program_that_sets_a_trace_function_of_its_own_keeps_it(untraced):
    def theirs(frame, event, argument):
        return None

    with gs.audit(watch_writers="from_start"):
        sys.settrace(theirs)
    try:
        assert sys.gettrace() is theirs
    finally:
        sys.settrace(None)


def test_results_are_bit_for_bit_those_without_a_watch(untraced):
    def train():
        torch.manual_seed(1)
        net = torch.nn.Sequential(
            torch.nn.Linear(40, 60), torch.nn.Dropout(0.2), torch.nn.Tanh(), torch.nn.Linear(60, 1)
        )
        optimizer = torch.optim.Adam(net.parameters())
        losses = []
        for _ in range(4):
            optimizer.zero_grad()
            loss = net(torch.randn(70, 40)).pow(2).mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses, [p.detach().clone() for p in net.parameters()], torch.get_rng_state()

    losses, parameters, state = train()
    with gs.audit(watch_writers="from_start") as session:
        audited = train()
    assert session.findings == ()
    assert audited[0] == losses
    assert all(map(torch.equal, audited[1], parameters))
    assert torch.equal(audited[2], state)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore")
def test_a_forked_child_follows_no_lines(untraced):
    reading, writing = os.pipe()
    with gs.audit(watch_writers="from_start"):
        child = os.fork()
        if not child:
            os.write(writing, b"no" if sys.gettrace() is None else b"yes")
            os._exit(0)
        os.waitpid(child, 0)
    assert os.read(reading, 9) == b"no"
    os.close(reading)
    os.close(writing)


def test_which_threads_may_have_written():
    assert not threads.another_may_have_written(lambda _thread: True)
    begin, done = threading.Event(), threading.Event()

    def wait():
        begin.set()
        done.wait()

    spinning = [True]

    def spin():
        begin.set()
        while spinning:
            pass

    for target, followed, expected in [
        (wait, True, False),
        (wait, False, True),
        (spin, True, True),
    ]:
        begin.clear()
        done.clear()
        spinning[:] = [True]
        thread = threading.Thread(target=target)
        thread.start()
        begin.wait()
        # Which of its lines the thread is on is its own affair.
        seen = {threads.another_may_have_written(lambda _: followed) for _ in range(2000)}  # noqa: B023
        done.set()
        spinning.clear()
        thread.join()
        assert expected in seen


def test_watched_place_is_none_where_nothing_is_watched():
    assert watched_place(sys._getframe(), lambda _code: False) is None


def test_an_unknown_line_has_the_first_offset():
    assert offset_in((function.__code__, 10**6)) == 0


def test_the_modes_of_the_watch_are_named_in_the_error():
    with pytest.raises(UsageError, match="watch_writers must be one of 'after_corruption', 'from_"):
        gs.audit(watch_writers="always")
