"""Figures of gradients are worked out when somebody looks, and are the same whenever that is."""

from __future__ import annotations

import copy
import gc
import json
import math
import pickle
import threading
import warnings
import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import gradcheck_suite as gs
from gradcheck_suite.graph.recording import gradient_stats

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64]
VALUES = [0.0, -0.0, 1.0, -2.5, 1e-30, 1e30, math.nan, math.inf, -math.inf]


def taken(gradients):
    """Take these gradients as those of one node."""
    figures = gradient_stats.GradientStats()
    figures.leaving(0)(tuple(gradients), ())
    figures.finish()
    return figures


def told(figures):
    return {index: gradient for _, index, gradient in figures.results()}


@st.composite
def small_gradients(draw):
    """Draw a gradient and a function that spoils it afterwards."""
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(1, 4), min_size=0, max_size=3))
    values = draw(
        st.lists(
            st.sampled_from(VALUES) | st.floats(-10, 10, width=16),
            min_size=math.prod(shape),
            max_size=math.prod(shape),
        )
    )
    whole = torch.tensor(values, dtype=torch.float64).to(dtype).reshape(shape)
    layout = draw(st.sampled_from(["contiguous", "turned", "with gaps", "expanded"]))
    if layout == "turned" and whole.dim():
        whole = whole.movedim(0, -1)
    elif layout == "with gaps" and whole.dim():
        whole = torch.stack([whole, whole], -1)[..., 0]
    elif layout == "expanded":
        whole = whole.expand(3, *whole.shape)
    return whole


def truth(gradient):
    """Return norm, zeros and the kind of what is not finite, by sums in Python."""
    elements = [complex(each) for each in gradient.flatten().tolist()]
    parts = [part for each in elements for part in (each.real, each.imag)]
    is_nan, is_infinite = any(map(math.isnan, parts)), any(map(math.isinf, parts))
    kind = "nan" if is_nan else "inf" if is_infinite else None
    norm = None if kind else math.hypot(*parts)
    return norm, sum(each == 0 for each in elements), len(elements), kind


@settings(max_examples=150, deadline=None)
@given(st.lists(small_gradients(), max_size=6))
@pytest.mark.slow
def test_what_is_written_afterwards_makes_no_difference(gradients):
    expected = [truth(gradient) for gradient in gradients]
    at_once, late = taken(gradients), taken(gradients)
    first = told(at_once)
    for gradient in gradients:
        base = gradient if gradient._base is None else gradient._base
        base.zero_()
        base.data.fill_(7)
    assert repr(told(late)) == repr(first)
    assert not late.unread
    for index, (norm, zeros, elements, kind) in enumerate(expected):
        assert (first[index].zeros, first[index].elements) == (zeros, elements)
        assert first[index].non_finite == kind
        assert norm is None or first[index].norm == pytest.approx(norm, rel=1e-3)


@settings(max_examples=60, deadline=None)
@given(st.lists(small_gradients(), min_size=1, max_size=6), st.randoms())
def test_company_makes_no_difference(gradients, random):
    alone = [told(taken([gradient]))[0] for gradient in gradients]
    order = list(range(len(gradients)))
    random.shuffle(order)
    together = told(taken([gradients[place] for place in order]))
    assert repr([together[place] for place in range(len(order))]) == repr(
        [alone[place] for place in order]
    )


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.LayerNorm(8), nn.Linear(8, 3))


def recorded(net=None, **options):
    net = model() if net is None else net
    torch.manual_seed(1)
    with gs.record(net, backward=True) as recording:
        net(torch.randn(5, 6)).pow(2).sum().backward(**options)
    return recording


def gradients_of(graph):
    return [edge.gradient for edge in graph.edges]


def worked_out_at_once(monkeypatch):
    """Return the gradients of a recording whose copies never wait."""
    with monkeypatch.context() as patched:
        patched.setattr(gradient_stats, "MOST_COPIED", -1)
        recording = recorded()
        assert not recording._backward.backwards[0].stats.copied_bytes
        return gradients_of(recording.graph)


class Refuses(TorchFunctionMode):
    def __torch_function__(self, func, *_):
        raise AssertionError(f"{func} was seen")


class RefusesOperators(TorchDispatchMode):
    def __torch_dispatch__(self, func, *_):
        raise AssertionError(f"{func} was seen")


def in_a_transform(look):
    found = []

    def looking(x):
        found.append(look())
        return x.sum()

    torch.func.grad(looking)(torch.ones(2))
    return found[0]


def in_a_batch(look):
    found = []

    def looking(x):
        found.append(look())
        return x

    torch.func.vmap(looking)(torch.ones(2))
    return found[0]


def in_a_thread(look):
    found = []
    thread = threading.Thread(target=lambda: found.append(look()))
    thread.start()
    thread.join()
    return found[0]


def in_a_backward(look):
    found = []
    x = torch.ones(2, requires_grad=True)
    x.register_hook(lambda _gradient: found.append(look()))
    x.sum().backward()
    return found[0]


def within(context):
    def run(look):
        with context():
            return look()

    return run


PLACES = {
    "no grad": within(torch.no_grad),
    "inference mode": within(torch.inference_mode),
    "a torch-function mode": within(Refuses),
    "a dispatch mode": within(RefusesOperators),
    "a default device": within(lambda: torch.device("meta")),
    "autocast": within(lambda: torch.autocast("cpu", torch.bfloat16)),
    "a transform": in_a_transform,
    "a batch": in_a_batch,
    "a thread": in_a_thread,
    "a backward": in_a_backward,
}


class TestWhenever:
    @pytest.mark.parametrize("place", PLACES)
    def test_the_look_happens_in(self, place, monkeypatch):
        recording = recorded()
        watched = recording._backward.backwards[0]
        assert watched.stats.copied_bytes
        found = PLACES[place](lambda: watched.gradients)
        assert not watched.stats.copied_bytes
        assert found
        assert gradients_of(recording.graph) == worked_out_at_once(monkeypatch)

    def test_everything_has_been_changed(self, monkeypatch):
        net = model()
        recording = recorded(net)
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.grad.fill_(math.nan)
                parameter.zero_()
                parameter.grad = None
        del net, parameter
        gc.collect()
        assert gradients_of(recording.graph) == worked_out_at_once(monkeypatch)

    @pytest.mark.parametrize("mode", [Refuses, RefusesOperators, torch.inference_mode])
    def test_backward_ran_in_a_mode(self, mode, monkeypatch):
        """The modes see what torch computes, and nothing of ours."""
        torch.manual_seed(1)
        net = model()
        seen = []
        if mode is not torch.inference_mode:
            name = f"__torch_{'function' if mode is Refuses else 'dispatch'}__"
            mode = type(
                "Sees",
                mode.__mro__[1:2],
                {name: lambda _s, f, _t, a=(), k=None: (seen.append(f), f(*a, **(k or {})))[1]},
            )

        def run(*, recorded):
            seen.clear()
            torch.manual_seed(1)
            loss = net(torch.randn(5, 6)).pow(2).sum()
            if not recorded:
                with mode():
                    torch.autograd.backward(loss)
                return list(seen), None
            with gs.record(modules=False, saved=False, backward=True) as recording:
                torch.manual_seed(1)
                loss = net(torch.randn(5, 6)).pow(2).sum()
                with mode():
                    torch.autograd.backward(loss)
            return list(seen), recording

        bare, _ = run(recorded=False)
        net.zero_grad(set_to_none=True)
        run(recorded=False)
        net.zero_grad(set_to_none=True)
        watched, recording = run(recorded=True)
        assert watched == bare
        assert gradients_of(recording.graph) == worked_out_at_once(monkeypatch)

    @pytest.mark.parametrize("options", [{"retain_graph": True}, {"create_graph": True}])
    def test_backward_kept_its_graph(self, options, monkeypatch):
        net = model()
        with warnings.catch_warnings():
            # Torch warns of `create_graph` once in a process.
            warnings.filterwarnings("ignore", "Using backward.. with create_graph=True")
            recording = recorded(net, **options)
        few = [each.norm for each in gradients_of(recording.graph)]
        assert few == [each.norm for each in worked_out_at_once(monkeypatch)]
        net.zero_grad(set_to_none=True)

    def test_several_threads_look_at_once(self, monkeypatch):
        recording = recorded()
        start = threading.Barrier(4)
        graphs = []

        def look():
            start.wait()
            graphs.append(recording.graph)

        threads = [threading.Thread(target=look) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(graphs) == 4
        assert len({id(graph) for graph in graphs}) == 1
        assert gradients_of(graphs[0]) == worked_out_at_once(monkeypatch)

    def test_the_recording_is_copied_first(self):
        recording = recorded()
        other = copy.copy(recording)
        assert other.graph == recording.graph

    def test_the_graph_is_pickled_copied_or_saved_first(self, monkeypatch, tmp_path):
        recording = recorded()
        graph = recording.graph
        expected = worked_out_at_once(monkeypatch)
        assert gradients_of(pickle.loads(pickle.dumps(graph))) == expected
        assert gradients_of(copy.deepcopy(graph)) == expected
        recorded().graph.save(tmp_path / "graph.json")
        edges = json.loads((tmp_path / "graph.json").read_text())["edges"]
        assert [edge["gradient"]["norm"] for edge in edges] == [each.norm for each in expected]


class TestWhen:
    @pytest.fixture
    def looks(self, monkeypatch):
        made = []
        measure = gradient_stats._measure_rows

        def measured(rows):
            made.append(rows.shape)
            return measure(rows)

        monkeypatch.setattr(gradient_stats, "_measure_rows", measured)
        return made

    def test_at_the_first_look_and_only_then(self, looks):
        recording = recorded()
        gc.collect()
        assert not looks
        first = recording.graph
        assert looks
        looks.clear()
        assert recording.graph is first
        assert not recording.unread_gradients
        assert not recording.not_recorded
        assert not looks

    @pytest.mark.parametrize("look", ["graph", "not_recorded", "unread_gradients", "trace_graph"])
    def test_any_look_does(self, look, looks):
        net = model()
        with gs.record(net, backward=True) as recording:
            loss = net(torch.randn(5, 6)).sum()
            loss.backward()
        if look == "trace_graph":
            recording.trace_graph(loss)
        else:
            getattr(recording, look)
        assert looks

    def test_findings_come_from_it(self):
        x = torch.zeros(3, requires_grad=True)
        with gs.record(backward=True) as recording:
            (x.sqrt() * 0).sum().backward()
        assert "GCS604" in {finding.code for finding in recording.graph.findings}


class Fails(torch.autograd.Function):
    @staticmethod
    def forward(_ctx, x):
        return x.clone()

    @staticmethod
    def backward(_ctx, _gradient):
        raise ValueError("no way")


@pytest.mark.parametrize("is_caught_inside", [True, False])
def test_an_exception_in_backward_leaves_what_ran(is_caught_inside):
    x = torch.full((4,), 2.0, requires_grad=True)
    recording = gs.record(backward=True)

    def run():
        (Fails.apply(x.sin()) * 3).sum().backward()

    if is_caught_inside:
        with recording, pytest.raises(ValueError, match="no way"):
            run()
    else:
        with pytest.raises(ValueError, match="no way"), recording:
            run()
    norms = {
        recording.graph.node(edge.source).op: edge.gradient and edge.gradient.norm
        for edge in recording.graph.edges
    }
    assert norms["SumBackward0"] == 2
    assert norms["MulBackward0"] == 6
    assert norms["FailsBackward"] is None


def test_nothing_of_the_programs_is_kept_alive():
    net = model()
    alive = []
    for parameter in net.parameters():
        alive.append(weakref.ref(parameter))
    x = torch.randn(5, 6)
    alive.append(weakref.ref(x))
    start = torch.ones(5, 3)
    alive.append(weakref.ref(start))
    with gs.record(net, backward=True) as recording:
        y = net(x)
        y.backward(start)
    alive += [weakref.ref(parameter.grad) for parameter in net.parameters()]
    graph = recording.graph
    del net, x, y, start, parameter
    gc.collect()
    assert not [each for each in alive if each() is not None]
    assert all(gradients_of(graph))


def test_no_gradient_is_kept_until_the_look():
    net = model()
    seen = []
    net[2].register_full_backward_hook(lambda _m, given, _g: seen.append(weakref.ref(given[0])))
    recording = recorded(net)
    assert recording._backward.backwards[0].stats.copied_bytes
    assert seen
    assert seen[0]() is None


def test_what_takes_goes_with_its_owner():
    figures = taken([torch.ones(3)])
    gone = weakref.ref(figures)
    gc.disable()
    try:
        del figures
        assert gone() is None
    finally:
        gc.enable()


class TestBound:
    def test_within_one_backward(self, monkeypatch):
        expected = gradients_of(recorded().graph)
        monkeypatch.setattr(gradient_stats, "MOST_COPIED", 1_000)
        waiting = []
        work_out = gradient_stats.GradientStats._compute_now

        def note(self):
            waiting.append(self.copied_bytes)
            work_out(self)
            assert not self.copied_bytes

        monkeypatch.setattr(gradient_stats.GradientStats, "_compute_now", note)
        recording = recorded()
        assert len(waiting) > 1
        # One node's gradients may come on top.
        assert max(waiting) <= 1_000 + 4 * (8 * 6 + 8 + 5 * 8) + 3 * gradient_stats._COPY
        assert gradients_of(recording.graph) == expected

    def test_over_many_backwards(self, monkeypatch):
        from gradcheck_suite.graph.recording import backward

        (one,) = recorded()._backward.backwards
        most = int(3.5 * one.stats.copied_bytes)
        monkeypatch.setattr(backward, "MOST_COPIED", most)
        net, x = model(), torch.randn(5, 6)
        waiting = []
        with gs.record(net, backward=True) as recording:
            for _ in range(12):
                net(x).pow(2).sum().backward()
                kept = recording._backward.backwards
                waiting.append(sum(each.stats.copied_bytes for each in kept))
        assert max(waiting) <= most
        assert 0 in waiting
        assert len({repr(list(each.gradients.values())) for each in kept}) == 1


@settings(max_examples=40, deadline=None)
@given(st.lists(small_gradients(), min_size=2, max_size=6))
def test_what_is_held_first_tells_the_same(gradients):
    """As on other devices: held, then copied into blocks, and fetched at the look."""
    expected = [truth(gradient) for gradient in gradients]
    figures = gradient_stats.GradientStats()
    for index, gradient in enumerate(gradients):
        figures._hold(0, index, gradient)
    figures.finish()
    assert not figures._held
    for gradient in gradients:
        (gradient if gradient._base is None else gradient._base).fill_(7)
    found = told(figures)
    assert not figures._blocks
    for index, (norm, zeros, elements, kind) in enumerate(expected):
        assert (found[index].zeros, found[index].elements) == (zeros, elements)
        assert found[index].non_finite == kind
        assert norm is None or found[index].norm == pytest.approx(norm, rel=1e-3)


def test_each_stream_is_waited_for_once(monkeypatch):
    """Of queued figures all are fetched together; a device that does so at once stands in."""
    monkeypatch.setattr(gradient_stats, "_SMALL", 0)
    fetched = []
    figures = gradient_stats.GradientStats()
    gradients = [torch.full((size,), 2.0) for size in (1, 4, 4, 9)]
    with torch.inference_mode():
        for row, gradient in enumerate(gradients):
            figures._entries.extend((0, row, row, gradient.numel()))
            figures._queue((row,), gradient.view(1, -1), None)
    cat = torch.cat
    monkeypatch.setattr(torch, "cat", lambda parts: fetched.append(len(parts)) or cat(parts))
    assert [each.norm for each in told(figures).values()] == [2, 4, 4, 6]
    assert fetched == [4, 4]
