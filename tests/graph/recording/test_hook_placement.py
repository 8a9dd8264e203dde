"""Where hooks stand in a recorded backward: few, and everywhere once anybody could disturb."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import gradcheck_suite as gs
from gradcheck_suite.graph.recording import gradient_stats
from gradcheck_suite.graph.recording.hook_placement import (
    HookCount,
    hook_every_node,
    place_sparse_hooks,
)
from gradcheck_suite.graph.trace.walk import collect


def leaf(*shape):
    return torch.randn(*shape, requires_grad=True)


def plan(make):
    """Return how many nodes ``make``'s graph has but leaves, and how many of them are hooked."""
    hook_count = HookCount()
    loss = make()
    links, _ = collect([loss.grad_fn])
    found = place_sparse_hooks([loss.grad_fn], hook_count)
    hooked = None if found is None else [node.name() for node in found.hooked]
    return len(hook_every_node(links).hooked), hooked


class TestFewHooks:
    def test_every_second_node_of_a_chain(self):
        nodes, hooked = plan(lambda: leaf(3).sin().exp().sin().exp().sin().exp().sum())
        # The last before the leaf hands on what the leaf gets.
        assert (nodes, len(hooked)) == (7, 4)

    def test_none_on_what_only_passes_on(self):
        def views():
            return leaf(4, 6).exp().t().reshape(2, 12).unsqueeze(0).permute(2, 0, 1).clone().sum()

        nodes, hooked = plan(views)
        assert nodes == 8
        assert hooked == ["ExpBackward0"]

    @pytest.mark.parametrize("sizes", [((3, 1), (3, 4)), ((3, 4), (3, 4))])
    def test_an_expansion_to_another_size_sums(self, sizes):
        before, after = sizes
        _, hooked = plan(lambda: leaf(*before).exp().expand(after).sin().sum())
        assert ("ExpandBackward0" in hooked) == (before != after) or "SinBackward0" in hooked

        with gs.record(backward=True) as recording:
            leaf(*before).exp().expand(after).sin().sum().backward()
        elements = {
            recording.graph.node(edge.source).op: edge.gradient.elements
            for edge in recording.graph.edges
        }
        assert elements["SinBackward0"] == 12
        assert elements["ExpandBackward0"] == before[0] * before[1]

    def test_a_node_that_several_edges_lead_to_is_not_asked_what_each_brought(self):
        with gs.record(backward=True) as recording:
            y = leaf(5).exp()
            (y.sin() + 3 * y).sum().backward()
        graph = recording.graph
        into = [
            edge.gradient.norm for edge in graph.edges if graph.node(edge.target).op[:3] == "Exp"
        ]
        assert len(set(into)) == 2
        assert pytest.approx(3 * 5**0.5) in into

    def test_no_more_is_held_than_is_allowed(self, monkeypatch):
        monkeypatch.setattr(gradient_stats, "_HELD", 1_000)
        sizes = []
        release_held = gradient_stats.GradientStats._release_held

        def measured(self):
            sizes.append(self._size)
            release_held(self)

        monkeypatch.setattr(gradient_stats.GradientStats, "_release_held", measured)
        monkeypatch.setattr(gradient_stats, "_SMALL", 100)
        with gs.record(backward=True) as recording:
            y = leaf(300)
            for _ in range(40):
                y = y.sin().exp()
            y.sum().backward()
        # What leaves a node, and what entered it, may come on top.
        assert len(sizes) > 10
        assert max(sizes) <= 1_000 + 2 * 300
        assert all(edge.gradient for edge in recording.graph.edges)


class TestDisturbed:
    """Wherever somebody may change a gradient on its way, each edge has what left its node."""

    @pytest.mark.parametrize("place", range(4))
    def test_a_hook_on_a_tensor(self, place):
        def run(hook):
            torch.manual_seed(0)
            with gs.record(backward=True) as recording:
                steps = [leaf(3).exp()]
                for step in (torch.Tensor.sin, lambda y: y.view(3, 1), lambda y: y.t(), torch.cos):
                    steps.append(step(steps[-1]))
                if hook:
                    steps[place].register_hook(lambda gradient: gradient * 10)
                steps[-1].sum().backward()
            return [edge.gradient.norm for edge in reversed(recording.graph.edges)]

        bare, changed = run(hook=False), run(hook=True)
        # Counted from the leaf: what leaves the hooked tensor's own node is ten times as much.
        factors = [10 if edge <= place else 1 for edge in range(len(bare))]
        assert changed == pytest.approx([n * f for n, f in zip(bare, factors, strict=True)])

    def test_a_hook_of_a_node_on_the_way(self):
        with gs.record(backward=True) as recording:
            y = leaf(3).exp().view(3, 1).t()
            y.grad_fn.register_hook(lambda gradients, _: (gradients[0] * 10,))
            y.sum().backward()
        norms = {
            recording.graph.node(edge.source).op: edge.gradient.norm
            for edge in recording.graph.edges
        }
        assert norms["TBackward0"] == pytest.approx(10 * norms["SumBackward0"])
        assert norms["ViewBackward0"] == pytest.approx(norms["TBackward0"])

    @pytest.mark.parametrize("make", [lambda w: w.t(), lambda w: w.sin().t().cos()])
    def test_a_part_that_is_older_than_the_recording(self, make):
        weight = leaf(3, 4)
        old = make(weight)
        old.register_hook(lambda gradient: gradient * 10)
        with gs.record(backward=True) as recording:
            (torch.ones(2, 4) @ old).sum().backward()
        norms = [edge.gradient.norm for edge in recording.graph.edges]
        assert norms[-1] == pytest.approx(weight.grad.norm().item())

    def test_old_parts_are_known_by_their_numbers(self):
        old = leaf(4, 3).t()

        def product(weight):
            return (torch.ones(2, 3) @ (old if weight is None else weight)).sum()

        assert plan(lambda: product(None))[1] is None
        assert plan(lambda: product(leaf(4, 3).t()))[1] is not None

    def test_hooks_of_a_recording_are_its_own(self):
        x = leaf(3)
        with gs.record(backward=True) as recording:
            for _ in range(3):
                x.exp().view(3, 1).t().sum().backward()
        assert all(each.placement.is_sparse for each in recording._backward.backwards)

    @pytest.mark.parametrize("elements", [3, 20_000])
    def test_a_custom_function_that_writes_into_what_it_is_given(self, elements):
        class Writes(torch.autograd.Function):
            @staticmethod
            def forward(_ctx, x):
                return x * 2

            @staticmethod
            def backward(_ctx, gradient):
                return gradient.mul_(2)

        with gs.record(backward=True) as recording:
            Writes.apply(leaf(elements).mul(0)).sin().view(elements, 1).sum().backward()
        graph = recording.graph
        (into,) = (edge for edge in graph.edges if graph.node(edge.target).op == "WritesBackward")
        if elements == 3:
            assert into.gradient.norm == pytest.approx(3**0.5)
        else:
            assert into.gradient is None
            assert "overwritten on the way" in graph.report.not_covered[0]

    def test_a_backward_that_stops_halfway(self):
        x = leaf(3)
        with gs.record(backward=True) as recording:
            y = x.exp()
            torch.autograd.grad(y.sin().view(3, 1).cos().sum(), y)
        graph = recording.graph
        ran = {graph.node(edge.source).op for edge in graph.edges if edge.gradient is not None}
        assert ran == {"SumBackward0", "CosBackward0", "ViewBackward0", "SinBackward0"}

    def test_module_hooks_count(self):
        model = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
        model[0].register_full_backward_hook(lambda _m, given, _out: (given[0] * 10,))
        x = leaf(2, 3)
        with gs.record(backward=True) as recording:
            model(x).sum().backward()
        graph = recording.graph
        (into,) = (
            edge
            for edge in graph.edges
            if (found := graph.node(edge.target).leaf) is not None and found.type.shape == (2, 3)
        )
        assert into.gradient.norm == pytest.approx(x.grad.norm().item())
