"""Odd programs: a recording lets them run as they do without, and says what it can't see."""

from __future__ import annotations

import collections
import gc
import weakref

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode

import gradcheck_suite as gs
from gradcheck_suite.graph.recording import module_spans, saved_tensors
from gradcheck_suite.severity import Severity


def leaf(*shape):
    return torch.randn(*shape, requires_grad=True)


class Passes(nn.Module):
    """Returns its input, in whatever wrapping is asked for."""

    def __init__(self, wrap):
        super().__init__()
        self.wrap = wrap

    def forward(self, x, *_):
        return self.wrap(x * 2)


def deep(x):
    for _ in range(5_000):
        x = [x]
    return x


def endless(x):
    found = [x]
    found.append(found)
    return found


@pytest.mark.parametrize("wrap", [deep, endless, lambda x: {"a": [x] * 2_000_000}])
def test_containers_of_any_depth_and_length(wrap):
    x = leaf(3)
    given = wrap(x)
    with gs.record() as recording:
        Passes(wrap)(x, given)
    assert [call.path for call in recording.calls] == [""]


def test_tensors_without_numbers():
    model = nn.Linear(3, 3, device="meta")
    with gs.record(backward=True) as recording:
        model(torch.randn(2, 3, device="meta")).sum().backward()
    graph = recording.graph

    assert graph.report.not_covered == (
        "4 gradients of a kind whose numbers can't be read, or overwritten on the way",
    )
    assert len(graph.nodes) == 5

    with FakeTensorMode(), gs.record(backward=True) as recording:
        fake = nn.Linear(3, 3)
        fake(torch.randn(2, 3)).sum().backward()
    assert recording.graph.report.not_covered == graph.report.not_covered


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_without_a_shape():
    nested = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], requires_grad=True)
    with gs.record(backward=True) as recording:
        torch.nested.to_padded_tensor(nested * 2, 0.0).exp().sum().backward()
    graph = recording.graph

    assert [edge.gradient.elements for edge in graph.edges] == [24, 24, 18, 18]
    assert graph.report.not_covered == ()
    assert graph.saved_bytes == 24 * 4 + 18 * 4


def test_torch_s_refusal_of_inference_tensors_arrives_as_it_is():
    with torch.inference_mode():
        weight = torch.ones(3)

    def refused():
        with pytest.raises(RuntimeError) as error:
            leaf(3) * weight
        return str(error.value)

    alone = refused()
    with gs.record():
        assert refused() == alone


@pytest.mark.parametrize("hook", [False, True])
def test_backward_under_inference_mode(hook):
    x = leaf(3)
    with gs.record(backward=True) as recording:
        y = x.exp()
        if hook:
            y.register_hook(lambda gradient: gradient * 2)
        loss = y.sum()
        with torch.inference_mode():
            loss.backward()
    assert [edge.gradient.elements for edge in recording.graph.edges] == [3, 3]


class Watching(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.seen = collections.Counter()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.seen[getattr(func, "__name__", str(func))] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("outside", [False, True])
def test_a_torch_function_mode_sees_what_it_sees_without(outside):
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 1))

    def step():
        out = model(torch.ones(2, 3))
        out[:1] *= 2
        out.sum().backward()

    with Watching() as alone:
        step()
    if outside:
        with Watching() as recorded, gs.record(backward=True, source=True):
            step()
    else:
        with gs.record(backward=True, source=True), Watching() as recorded:
            step()
    assert recorded.seen == alone.seen


def test_memory_that_is_used_again_is_not_taken_for_a_detached_output():
    model = nn.ModuleDict({"idle": nn.Linear(64, 64), "used": nn.Linear(64, 64)})
    false_claims = []
    for _ in range(20):
        with gs.record(model) as recording:
            model["idle"](torch.ones(1, 64))  # its output, and the memory of it, are gone
            loss = model["used"](torch.ones(1, 64)).sum()
        report = recording.trace_graph(loss, model=model).report
        false_claims += [found.message for found in report.findings if found.code == "GCS401"]
    assert not false_claims


def test_backwards_within_torch_func_are_its_own():
    x = leaf(3)
    with gs.record(backward=True) as recording:
        (x * 2).sum().backward()
        torch.func.jacrev(torch.sin)(torch.ones(3))
        torch.func.vmap(torch.func.grad(lambda z: (z * z).sum()))(torch.ones(3, 2))
    graph = recording.graph

    assert [node.op for node in graph.nodes] == ["SumBackward0", "MulBackward0", "AccumulateGrad"]
    assert all(edge.gradient for edge in graph.edges)
    assert graph.report.not_covered == ()


class TestLongLoops:
    """A recording round a whole training loop stays of a size."""

    def test_of_many_backwards_the_last_are_kept(self):
        model, graphs = nn.Linear(3, 1), []
        with gs.record(model, backward=True) as recording:
            for _ in range(40):
                loss = model(torch.ones(2, 3)).sum()
                graphs.append(loss)
                loss.backward()
        first, last = (recording.trace_graph(graphs[step], model) for step in (0, -1))

        assert len(recording._backward.backwards) == 32
        assert all(edge.gradient for edge in last.edges)
        assert last.report.not_covered == ()
        assert not any(edge.gradient for edge in first.edges)
        (words,) = first.report.not_covered
        assert words.endswith("ran through it, or only the first 8, which are not kept")

    def test_of_what_was_saved_the_last_is_kept(self, monkeypatch):
        monkeypatch.setattr(saved_tensors, "_MOST", 100)
        x = leaf(3)
        with gs.record() as recording:
            made = [(x * 1).exp() for _ in range(150)]
        torch.autograd.backward([each.sum() for each in made])

        assert len(recording.packed) <= 100
        assert recording.trace_graph(made[-1]).saved_bytes == 12
        lost = recording.trace_graph(made[0])
        assert lost.saved_bytes == 0
        assert "what 2 ops saved: a backward has freed it" in lost.report.not_covered[0]

    def test_memory_that_is_gone_is_forgotten(self, monkeypatch):
        monkeypatch.setattr(module_spans, "_PRUNE_AT", 50)
        model = nn.Tanh()
        with gs.record() as recording:
            watch = recording._modules
            kept = [model(leaf(3)) for _ in range(20)]
            for _ in range(200):
                model(leaf(3))
            assert 20 <= len(watch._made_with_graph) <= 60
        assert len(kept) == 20


def test_a_recording_keeps_no_model_alive():
    model = nn.Linear(3, 3)
    with gs.record(model, backward=True) as recording:
        model(torch.ones(2, 3)).sum().backward()
    alive = weakref.ref(model)
    assert recording.graph.leaves[0].leaf.names
    del model
    gc.collect()
    assert alive() is None
    assert recording.graph.leaves[0].leaf.names


class Sends(torch.autograd.Function):
    """Three inputs, three outputs; what backward returns for them is up to the test."""

    @staticmethod
    def forward(ctx, a, b, c):
        ctx.set_materialize_grads(False)
        return a * 1, b * 1, c * 1

    @staticmethod
    def backward(_ctx, first, _second, third):
        return first, None, third


class TestNoGradient:
    def found(self, *, outputs):
        with gs.record(backward=True) as recording:
            made = Sends.apply(leaf(2), leaf(2), leaf(2))
            sum(made[index].sum() for index in outputs).backward()
        return [found for found in recording.graph.findings if found.code == "GCS508"]

    def test_each_input_is_numbered(self):
        (finding,) = self.found(outputs=(0, 1, 2))
        assert "returned no gradient for its input 1, and no other path leads to" in finding.message
        assert finding.severity is Severity.WARNING

    def test_an_output_that_nobody_used_may_be_why(self):
        (finding,) = self.found(outputs=(0,))
        assert "for its inputs 1, 2 (outputs 1, 2 of it got none either), and" in finding.message
        assert finding.severity is Severity.NOTE
        assert "use outputs 1, 2 in the loss" in finding.hint


@pytest.mark.parametrize("path", ["", None, b"graph.svg", "a\0b.svg"])
def test_what_is_no_name_of_a_file(path):
    graph = gs.trace_graph(leaf(2))
    with pytest.raises(gs.UsageError, match=r"expected the name of a file to save to, such as"):
        graph.save(path)


def test_a_name_that_is_too_long(tmp_path):
    graph = gs.trace_graph(leaf(2))
    with pytest.raises(gs.UsageError, match=r"cannot write the graph to .*: File name too long"):
        graph.save(tmp_path / ("n" * 300 + ".svg"))


@pytest.mark.parametrize("depth", ["all", -2, 1.5, True])
def test_a_depth_that_is_none(depth, tmp_path):
    graph = gs.trace_graph(leaf(2))
    with pytest.raises(gs.UsageError, match=r"depth= expected a number of levels of modules"):
        graph.save(tmp_path / "graph.svg", depth=depth)
