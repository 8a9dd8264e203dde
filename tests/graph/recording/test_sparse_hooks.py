"""What few hooks tell of a backward is what a hook on every node tells."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional

import gradcheck_suite as gs
from gradcheck_suite.graph.recording import gradient_stats


def leaf(*shape):
    return torch.randn(*shape, requires_grad=True)


def encoder():
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    return model(torch.randn(2, 5, 16)).sum()


def convolutions():
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()
    )
    return model(torch.randn(2, 3, 8, 8)).pow(2).mean()


def views_of_one():
    """A view that two lead to is found to be shared after it was passed."""
    y = leaf(4, 6).exp()
    turned = y.t()
    return (turned.sin() + turned).reshape(-1).sum() + turned.unsqueeze(0).sum()


def selections():
    y = leaf(5, 4).exp()
    first, rest = y[0], y[1:]
    return (first.sin() * rest[::2].cos()).sum() + y[2, 1:3].sum() + y.select(1, 0).exp().sum()


def chains_of_selections():
    return leaf(4, 5, 6).sin()[1][2:].t()[0].exp().sum()


def selections_to_the_leaf():
    return (leaf(5, 4)[1:, 0] ** 2).sum()


def expansions():
    return (leaf(3, 1).exp().expand(3, 4) * leaf(3, 4).expand(3, 4)).sum()


def broadcast_sums():
    return ((leaf(3, 1).exp() + leaf(4).sin()) - leaf(1)).relu().sum()


def several_outputs():
    a, b, _ = leaf(6, 2).exp().split(2)
    c, d = torch.stack([a, b]).unbind()
    values, _ = (c * d).sort()
    return torch.cat([values, a]).sum()


def recurrence():
    cell = nn.GRUCell(3, 3)
    state = torch.zeros(2, 3)
    for step in torch.randn(4, 2, 3):
        state = cell(step, state)
    return state.sum()


def shared_leaf():
    w = leaf(3, 3)
    return functional.linear(functional.linear(torch.randn(2, 3), w), w.t()).sum() + w.sum()


def in_place():
    y = leaf(4, 4).sin()
    y[0] = y[1].clone() * 2
    y.mul_(3)
    return y.sum()


def complex_numbers():
    return torch.view_as_real((leaf(3, 4) * torch.randn(4, dtype=torch.complex64)).t()[1:]).sum()


def other_dtypes():
    return (leaf(3, 4).half().t().contiguous()[1] * leaf(3).double()).sum()


def started_at_a_view():
    return leaf(3).exp().sum().view(1).squeeze()


def nothing_flows():
    a, b = leaf(3).exp(), leaf(3)
    return torch.where(torch.ones(3, dtype=torch.bool), a, b.detach()).sum() + a.view(3)[0:0].sum()


PROGRAMS = [
    encoder, convolutions, views_of_one, selections, chains_of_selections,
    selections_to_the_leaf, expansions, broadcast_sums, several_outputs, recurrence, shared_leaf,
    in_place, complex_numbers, other_dtypes, started_at_a_view, nothing_flows,
]  # fmt: skip


def figures(program, *, everywhere):
    torch.manual_seed(0)
    with gs.record(backward=True) as recording:
        if everywhere:
            # Any hook could change gradients, so that none follows from another.
            torch.ones(1, requires_grad=True).register_hook(lambda _gradient: None)
        program().backward()
        (watched,) = recording._backward.backwards
        assert watched.placement.is_sparse is not everywhere
    return [edge.gradient for edge in recording.graph.edges], recording


@pytest.mark.parametrize("program", PROGRAMS)
def test_few_hooks_tell_what_many_tell(program):
    few, recording = figures(program, everywhere=False)
    many, _ = figures(program, everywhere=True)
    assert len(few) == len(many)
    for one, other in zip(few, many, strict=True):
        assert one is not None
        assert other is not None
        assert (one.elements, one.zeros, one.non_finite) == (
            other.elements,
            other.zeros,
            other.non_finite,
        )
        assert one.norm == pytest.approx(other.norm, rel=1e-5)
    assert not recording.unread_gradients


def added_up():
    first, second, third = leaf(4), leaf(4), leaf(4)
    whole = torch.cat([first, second.view(4), third])
    return (
        (whole + whole.flip(0)).sum() + (first + second).sum() + torch.stack([third, first]).sum()
    )


def split_up():
    one, other = leaf(6, 4).split(3)
    return (one.t() @ other).sum() + one.unbind()[0].sum()


def by_weights():
    return (functional.linear(leaf(3, 4), leaf(5, 4), leaf(5)) @ leaf(6, 5).t()).sum()


@pytest.mark.parametrize("program", [*PROGRAMS, added_up, split_up, by_weights])
def test_what_is_done_to_grad_before_the_look_changes_nothing(program):
    at_once, _ = figures(program, everywhere=True)
    torch.manual_seed(0)
    with gs.record(backward=True) as recording:
        loss = program()
        loss.backward()
        filled = [each.grad for each in leaves_of(loss) if each.grad is not None]
        for gradient in filled:
            gradient.mul_(100)
            gradient[...] = 7
    assert filled
    assert not recording.unread_gradients
    for one, other in zip(at_once, (e.gradient for e in recording.graph.edges), strict=True):
        assert (one.elements, one.zeros) == (other.elements, other.zeros)
        assert one.norm == pytest.approx(other.norm, rel=1e-5)


def leaves_of(loss):
    waiting, seen = [loss.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        waiting.extend(target for target, _ in node.next_functions)
        if hasattr(node, "variable"):
            yield node.variable


@pytest.mark.parametrize("program", PROGRAMS)
def test_nothing_is_changed(program, monkeypatch):
    made = []
    monkeypatch.setattr(
        f"{__name__}.leaf",
        lambda *shape: made.append(torch.randn(*shape, requires_grad=True)) or made[-1],
    )

    def gradients(*, recorded):
        made.clear()
        torch.manual_seed(0)
        if recorded:
            with gs.record(backward=True):
                program().backward()
        else:
            program().backward()
        return [each.grad for each in made]

    for bare, watched in zip(gradients(recorded=False), gradients(recorded=True), strict=True):
        assert (bare is None) == (watched is None)
        assert bare is None or torch.equal(bare, watched)


class TestHeld:
    """Gradients wait until some megabytes have come together, or backward ends."""

    def gradients_of(self, recording):
        graph = recording.graph
        return {
            found.name: edge.gradient
            for edge in graph.edges
            if (found := graph.node(edge.target).leaf) is not None and found.name
        }

    def test_hooks_that_write_into_grad_during_backward(self):
        """A leaf takes a view of the gradient for its own, where one leads to it."""
        model = nn.Linear(4, 2)

        def scale(parameter):
            parameter.grad.mul_(100)

        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(scale)
        with gs.record(model, backward=True) as recording:
            model(torch.ones(3, 4)).sum().backward()
        for name, gradient in self.gradients_of(recording).items():
            written = model.get_parameter(name).grad
            assert gradient.norm == pytest.approx(written.norm().item() / 100)

    @pytest.mark.parametrize("size", [2, 5_000])
    def test_writers_that_nobody_can_see_coming(self, size):
        weight = leaf(size, 4)
        node = weight.expand_as(weight).grad_fn.next_functions[0][0]

        def scale(*_):
            weight.grad.mul_(100)

        node.register_hook(scale)
        with gs.record(backward=True) as recording:
            (torch.ones(3, 4) @ weight.t()).sum().backward()
        gradient = recording.graph.edges[-1].gradient
        if size == 2:
            assert gradient.norm == pytest.approx(weight.grad.norm().item() / 100)
        else:
            assert gradient is None
        assert recording.unread_gradients == (size > 2)

    def test_nothing_is_held_after_backward(self, monkeypatch):
        held = []
        hold = gradient_stats.GradientStats._hold

        def note(self, node, index, gradient):
            held.append(weakref.ref(gradient))
            hold(self, node, index, gradient)

        monkeypatch.setattr(gradient_stats.GradientStats, "_hold", note)
        monkeypatch.setattr(gradient_stats, "_SMALL", 10)
        x = leaf(64)
        with gs.record(backward=True):
            y = x.exp().sin().exp()
            y.sum().backward()
            assert y.grad_fn is not None
            gc.collect()
            # The last one may be the leaf's.
            assert len(held) > 2
            assert not any(gradient() is not None for gradient in held[:-1])

    def test_inside_inference_mode(self):
        loss = leaf(3).exp().sum()
        with torch.inference_mode(), gs.record(backward=True) as recording:
            loss.backward()
        assert recording.graph.edges

    def test_a_custom_function_that_returns_one_tensor_twice(self):
        class Twice(torch.autograd.Function):
            @staticmethod
            def forward(_ctx, x, y, _z):
                return x + y

            @staticmethod
            def backward(_ctx, gradient):
                return gradient, gradient, None

        with gs.record(backward=True) as recording:
            Twice.apply(leaf(4).exp(), leaf(4).sin(), leaf(4)).sum().backward()
        graph = recording.graph
        (custom,) = (node.id for node in graph.nodes if node.op == "TwiceBackward")
        assert [edge.gradient.norm for edge in graph.edges if edge.source == custom] == [2, 2, None]


class TestFigures:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
    @pytest.mark.parametrize("elements", [1 << 15, (1 << 15) + 1, 3 << 17, 40_000, 1000])
    def test_sizes(self, elements, dtype):
        x = torch.ones(elements, dtype=dtype, requires_grad=True)
        factor = torch.ones(elements, dtype=dtype)
        factor[3::7] = 0
        factor[::5] = float("-0")
        with gs.record(backward=True) as recording:
            (x * factor).sum().backward()
        gradient = recording.graph.edges[-1].gradient
        kept = int(factor.count_nonzero())
        assert gradient.zeros == elements - kept
        assert gradient.norm == pytest.approx(kept**0.5, rel=1e-6)

    @pytest.mark.parametrize("value", [1e-22, 3e-39, 1e-45])
    @pytest.mark.parametrize("elements", [9, 40_000])
    def test_squares_that_lose_digits(self, value, elements):
        x = torch.ones(elements, requires_grad=True)
        factor = torch.full((elements,), value)
        with gs.record(backward=True) as recording:
            (x * factor).sum().backward()
        gradient = recording.graph.edges[-1].gradient
        assert gradient.norm == pytest.approx(factor[0].item() * elements**0.5, rel=1e-5)
        assert gradient.zeros == 0

    def test_a_slice_of_something_large_counts_as_that(self, monkeypatch):
        """The gradients of what was concatenated are views of the whole gradient."""
        monkeypatch.setattr(gradient_stats, "_HELD", 20_000)
        monkeypatch.setattr(gradient_stats, "_SMALL", 0)
        measured = []
        put_away = gradient_stats.GradientStats._release_held

        def note(self):
            measured.append(len(self._held))
            put_away(self)

        monkeypatch.setattr(gradient_stats.GradientStats, "_release_held", note)
        state = leaf(1)
        with gs.record(backward=True):
            total = state
            for _ in range(20):
                total = torch.cat([torch.ones(9_999), total]).sin().sum().view(1)
            total.backward()
        assert len(measured) > 5
