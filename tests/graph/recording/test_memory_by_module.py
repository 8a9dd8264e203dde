"""The bytes that each module's own ops keep alive, against sizes counted by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import gradcheck_suite as gs

FLOAT = 4


def recorded(model, *inputs, **options):
    with gs.record(model, **options) as recording:
        loss = model(*inputs).sum()
    return recording.trace_graph(loss, model=model)


def layers():
    return nn.Sequential(nn.Linear(3, 4), nn.Sigmoid(), nn.Linear(4, 2), nn.Tanh())


def test_each_storage_counts_once_for_the_first_in_backward():
    graph = recorded(layers(), torch.ones(5, 3))

    # The output of sigmoid is the input of the second linear, which backward comes to first.
    assert graph.memory_by_module == (("2", 5 * 4 * FLOAT), ("0", 5 * 3 * FLOAT), ("3", 40))
    assert graph.saved_bytes == 180


def test_without_a_recording_nobody_knows_the_module():
    model = layers()
    graph = gs.trace_graph(model(torch.ones(5, 3)).sum(), model=model)

    assert graph.memory_by_module == (("", 180),)


def test_a_module_s_bytes_are_its_own_without_those_within():
    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Sigmoid()

        def forward(self, x):
            return self.inner(x).exp()

    x = torch.ones(6, requires_grad=True)
    graph = recorded(Outer(), x)
    kinds = dict(graph.memory_by_module)

    # exp saves its own result; sigmoid's is kept by sigmoid alone.
    assert kinds == {"Outer": 6 * FLOAT, "inner": 6 * FLOAT}


def test_calls_of_one_module_add_up():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.act = nn.Sigmoid()

        def forward(self, x):
            return self.act(self.act(x))

    graph = recorded(Twice(), torch.ones(7, requires_grad=True))

    assert graph.memory_by_module == (("act", 2 * 7 * FLOAT),)


def test_what_is_saved_outside_of_modules():
    x = torch.ones(5, 3, requires_grad=True)
    model = nn.Tanh()
    with gs.record(model) as recording:
        loss = model(x.exp()).sin().sum()
    graph = recording.trace_graph(loss)

    # exp's and sin's (which is tanh's result: sin comes first in backward).
    assert graph.memory_by_module == (("", 2 * 15 * FLOAT),)


def test_writes_into_views_and_freed_graphs_count_as_recorded():
    class Writes(nn.Module):
        def forward(self, x):
            y = x.clone()
            y[:2] *= x[2:]
            return y.sigmoid()

    x = torch.ones(4, 6, requires_grad=True)
    graph = recorded(Writes(), x)
    sizes = dict(graph.memory_by_module)
    # mul saved the old values of the two rows (x[2:] is a leaf's memory), sigmoid its result.
    assert sizes["Writes"] == graph.saved_bytes >= 4 * 6 * FLOAT + 2 * 6 * FLOAT

    model = layers()
    with gs.record(model, backward=True) as recording:
        model(torch.ones(5, 3)).sum().backward()
    assert recording.graph.memory_by_module == (("2", 80), ("0", 60), ("3", 40))


@pytest.mark.parametrize("number", [2, 2.5, 1 + 2j])
def test_numbers_of_python_count_nothing_before_and_after(number):
    x = torch.ones(3, requires_grad=True)
    with gs.record(backward=True) as recording:
        loss = ((x * 1).sin() * number).abs().sum()
        before = recording.trace_graph(loss)
        loss.backward()
    alone = gs.trace_graph(((x * 1).sin() * number).abs().sum())

    assert recording.graph.saved_bytes == before.saved_bytes == alone.saved_bytes
    scalar = torch.tensor(number)
    assert gs.trace_graph(x * scalar).saved_bytes == scalar.nbytes


@pytest.mark.parametrize("offload", [False, True])
def test_what_other_hooks_held_is_never_passed_off_as_nothing(offload):
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    x = torch.ones(2, 3, requires_grad=True)
    with gs.record(model, backward=True) as recording:
        if offload:
            with torch.autograd.graph.save_on_cpu():
                y = model(x.exp())
        else:
            y = checkpoint(model, x.exp(), use_reentrant=False)
        y.sin().sum().backward()
    graph = recording.graph
    held = {node.op for node in graph.nodes if not node.saved_is_visible}

    assert held == {"TanhBackward0", "AddmmBackward0", *(["ExpBackward0"] if offload else [])}
    assert not graph.saved_bytes_are_complete
    assert "at least" in str(graph)
    (words,) = graph.report.not_covered
    assert words.startswith(f"what {len(held)} ops saved: a backward has freed it")
    assert "checkpointing, offloading" in words
    assert torch.autograd.graph.saved_tensors_hooks.__enter__.__module__ == "torch.autograd.graph"


def test_hooks_that_outlive_the_recording():
    x = torch.ones(3, requires_grad=True)
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t)
    inner = torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t)
    with gs.record() as recording:
        first = x.exp()
        hooks.__enter__()
        with inner:
            second = first.exp()
        third = second.exp()
    third.sum().backward()
    inside = recording.trace_graph(third)
    hooks.__exit__(None, None, None)

    seen = [node.saved_is_visible for node in inside.nodes if node.leaf is None]
    assert seen == [False, False, True]


def test_bytes_add_up_to_the_total(subject):
    with gs.record() as recording:
        loss, model = subject()
    graph = recording.trace_graph(loss, model=model)

    assert sum(size for _, size in graph.memory_by_module) == graph.saved_bytes
    sizes = [size for _, size in graph.memory_by_module]
    assert sizes == sorted(sizes, reverse=True)
    assert all(sizes)


def test_the_page_lists_them(tmp_path):
    recorded(layers(), torch.ones(5, 3)).save(tmp_path / "graph.html")

    assert '["2",80]' in (tmp_path / "graph.html").read_text().replace(" ", "")
