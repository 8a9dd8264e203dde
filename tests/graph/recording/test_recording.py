from __future__ import annotations

import gc
import inspect
import threading
import weakref
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

import gradcheck_suite as gs
from gradcheck_suite._torch_compat import top_saved_tensors_hooks


def gradients_of(model):
    return [parameter.grad.clone() for parameter in model.parameters()]


def train_once(build, context):
    torch.manual_seed(0)
    with context as recording:
        loss, model = build()
        loss.backward()
    model = model or nn.Module()
    return loss.detach(), gradients_of(model), torch.get_rng_state(), recording


class TestNothingChanges:
    def test_same_bits(self, subject):
        import contextlib

        bare = train_once(subject, contextlib.nullcontext())
        seen = train_once(subject, gs.record(source=True, backward=True))

        assert torch.equal(bare[0], seen[0])
        assert all(map(torch.equal, bare[1], seen[1]))
        assert torch.equal(bare[2], seen[2])

    def test_everything_is_restored_after_an_exception(self):
        def state():
            return (
                len(nn.modules.module._global_forward_hooks),
                len(nn.modules.module._global_forward_pre_hooks),
                torch.autograd._engine_run_backward,
                torch.autograd.graph._engine_run_backward,
                torch.is_anomaly_enabled(),
                torch.is_anomaly_check_nan_enabled(),
                top_saved_tensors_hooks(),
            )

        def fail():
            assert state() != before
            raise KeyboardInterrupt

        before = state()
        with pytest.raises(KeyboardInterrupt), gs.record(source=True, backward=True):
            fail()

        assert state() == before

    def test_anomaly_mode_of_the_users_stays_on(self):
        with torch.autograd.set_detect_anomaly(True, check_nan=True):
            with gs.record(source=True):
                pass
            assert torch.is_anomaly_enabled()
            assert torch.is_anomaly_check_nan_enabled()

    def test_torchs_own_check_of_saved_tensors_still_raises(self):
        with gs.record() as recording:
            x = torch.ones(3, requires_grad=True)
            y = x.exp()
            loss = (y * y).sum()
            y.add_(1)

        graph = recording.trace_graph(loss)

        assert [saved.modified for node in graph.nodes for saved in node.saved].count(True) >= 1
        with pytest.raises(RuntimeError, match=r"modified by an inplace operation.*version 1"):
            loss.backward()

    def test_keeps_nothing_alive(self):
        with gs.record(backward=True) as recording:
            model = nn.Linear(3, 3)
            hidden = model(torch.ones(2, 3))
            hidden.sum().backward(retain_graph=True)
        kept = [weakref.ref(hidden), weakref.ref(model)]
        del hidden, model
        gc.collect()

        assert [reference() for reference in kept] == [None, None]
        assert recording.graph.nodes


class TestModules:
    def test_every_op_of_a_module_is_the_modules(self):
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.stem = nn.Linear(3, 3)
                self.block = nn.Sequential(nn.Linear(3, 3), nn.Tanh())

            def forward(self, x):
                return self.block(self.stem(x).sin()).cos()

        with gs.record() as recording:
            loss = Net()(torch.ones(2, 3)).sum()
        graph = recording.trace_graph(loss)

        seen = {node.op: graph.module_of(node) for node in graph.nodes if node.leaf is None}
        assert seen["SumBackward0"] is None
        assert seen["CosBackward0"] == "Net"
        assert seen["TanhBackward0"] == "block.1"
        assert seen["SinBackward0"] == "Net"
        assert [call.path for call in graph.calls] == ["", "stem", "block", "block.0", "block.1"]
        assert graph.calls[3].parent == 3
        assert {node.leaf.name for node in graph.leaves} == {
            "stem.weight", "stem.bias", "block.0.weight", "block.0.bias",
        }  # fmt: skip

    def test_calls_of_one_module_are_told_apart(self):
        cell = nn.RNNCell(2, 2)
        with gs.record(cell) as recording:
            state = torch.zeros(1, 2)
            for _ in range(3):
                state = cell(torch.ones(1, 2), state)
        graph = recording.trace_graph(state.sum())

        assert [call.number for call in graph.calls] == [1, 2, 3]
        assert {node.call for node in graph.nodes if node.op == "TanhBackward0"} == {1, 2, 3}
        assert graph.calls[2].label == "RNNCell (call 3)"

    def test_two_outermost_modules_give_their_classes_as_prefixes(self):
        first, second, loss_function = nn.Linear(2, 2), nn.Linear(2, 2), nn.MSELoss()
        with gs.record() as recording:
            loss = loss_function(second(first(torch.ones(1, 2))), torch.zeros(1, 2))
        graph = recording.trace_graph(loss)

        assert [call.path for call in graph.calls] == ["Linear", "Linear_2", "MSELoss"]
        assert {node.leaf.name for node in graph.leaves} == {
            "Linear.weight", "Linear.bias", "Linear_2.weight", "Linear_2.bias",
        }  # fmt: skip

    def test_a_call_that_raised_does_not_swallow_what_follows(self):
        class Fails(nn.Module):
            def forward(self, _):
                raise ValueError("no")

        model, fails = nn.Linear(2, 2), Fails()
        with gs.record() as recording:
            with pytest.raises(ValueError, match="no"):
                nn.Sequential(model, fails)(torch.ones(1, 2))
            loss = model(torch.ones(1, 2)).sin()
        graph = recording.trace_graph(loss.sum())

        assert {node.op: graph.module_of(node) for node in graph.nodes}["SinBackward0"] is None

    def test_other_threads_are_said_to_be_left_out(self):
        model = nn.Linear(2, 2)
        with gs.record() as recording:
            thread = threading.Thread(target=model, args=(torch.ones(1, 2),))
            thread.start()
            thread.join()

        assert not recording.calls
        assert "other threads" in recording.not_recorded[0]

    def test_compiled_modules_are_left_alone(self):
        model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
        compiled = torch.compile(model, backend="eager", fullgraph=True)
        expected = model(torch.ones(1, 2))
        with gs.record() as recording:
            loss = compiled(torch.ones(1, 2))

        assert torch.equal(loss, expected)
        assert recording.trace_graph(loss).nodes


class TestSaved:
    def test_what_an_in_place_write_into_a_view_saved_is_counted(self):
        x = torch.randn(5, 4, requires_grad=True)
        with gs.record() as recording:
            y = x.clone()
            y[0].mul_(x[1].sin())
            y[1].exp_()
        graph = recording.trace_graph(y.sum())

        exp, mul = (node for node in graph.nodes if node.op == "CopySlices")
        # mul_ saves a copy of the old row and the factor; exp_ its result, which is all of y.
        assert sorted(saved.storage_bytes for saved in mul.saved) == [16, 16]
        assert [saved.storage_bytes for saved in exp.saved] == [80]
        assert graph.saved_bytes_are_complete
        assert not gs.trace_graph(y.sum()).saved_bytes_are_complete

    def test_bytes_are_those_of_a_plain_trace(self, subject):
        loss, model = subject()
        plain = gs.trace_graph(loss, model=model)
        torch.manual_seed(0)
        with gs.record() as recording:
            loss, model = subject()
        recorded = recording.trace_graph(loss, model=model)

        hidden = sum(node.saved_bytes for node in recorded.nodes if node.op == "CopySlices")
        assert recorded.saved_bytes - hidden == plain.saved_bytes

    def test_bytes_are_known_after_backward_too(self, small_resnet):
        with gs.record() as recording:
            loss = small_resnet(torch.randn(2, 3, 8, 8)).sum()
        before = recording.trace_graph(loss, model=small_resnet)
        loss.backward()
        after = recording.trace_graph(loss, model=small_resnet)

        assert after.saved_bytes == before.saved_bytes > 0
        assert all(node.freed for node in after.nodes if node.saved)

    def test_hooks_of_the_users_see_what_they_would_see(self):
        seen = []

        def pack(tensor):
            seen.append(tensor.shape)
            return tensor

        x = torch.ones(3, requires_grad=True)
        with saved_tensors_hooks(pack, lambda packed: packed), gs.record() as outside:
            x.exp()
        with gs.record() as inside, saved_tensors_hooks(pack, lambda packed: packed):
            x.exp()

        assert len(seen) == 2
        assert "hooks of yours" in outside.not_recorded[0]
        assert not inside.not_recorded

    def test_functional_transforms_run_as_without(self):
        disable = torch.autograd.graph.disable_saved_tensors_hooks
        x = torch.ones(3, requires_grad=True)
        with gs.record(backward=True) as recording:
            inner = torch.func.grad(lambda z: (z**2).sum())(torch.ones(3))
            jacobian = torch.func.jacrev(torch.sin)(torch.ones(3))
            y = x.clone()
            y[0].exp_()
            mapped = torch.func.vmap(lambda z: (z * x).sum())(torch.ones(2, 3))
            (y * inner * jacobian.sum() + mapped.sum()).sum().backward()

        assert torch.equal(inner, torch.full((3,), 2.0))
        assert recording.graph.saved_bytes_are_complete, "hooks are back after each transform"
        assert torch.autograd.graph.disable_saved_tensors_hooks is disable

    @pytest.mark.parametrize("reentrant", [True, False])
    def test_checkpointed_parts(self, reentrant):
        model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
        x = torch.ones(2, 3, requires_grad=True)
        with gs.record(backward=True) as recording:
            loss = checkpoint(model, x, use_reentrant=reentrant).sum()
            loss.backward()

        assert len(recording.calls) == 4, "what backward runs again is not recorded"
        assert recording.graph.nodes[0].op == "SumBackward0"

    def test_double_backward(self):
        x = torch.ones(3, requires_grad=True)
        with gs.record(backward=True) as recording:
            (first,) = torch.autograd.grad((x.exp() ** 2).sum(), x, create_graph=True)
            first.sum().backward()

        assert torch.allclose(x.grad, 4 * x.detach().mul(2).exp())
        assert recording.graph.edges


class TestSource:
    def test_lines_of_the_user(self):
        with gs.record(source=True) as recording:
            x = torch.ones(3, requires_grad=True)
            line = inspect.currentframe().f_lineno + 1
            y = nn.functional.layer_norm(x.clone(), (3,))
            y[:1] = 0
        graph = recording.trace_graph(y.sum())

        lines = {node.op: node.source.line for node in graph.nodes if node.source}
        assert lines["NativeLayerNormBackward0"] == line
        assert lines["CopySlices"] == line + 1
        node = next(node for node in graph.nodes if node.op == "CopySlices")
        assert Path(node.source.path) == Path(__file__)
        assert node.source.function == "test_lines_of_the_user"


class TestGradients:
    def test_norms_and_zeros_of_every_edge(self):
        weight = torch.tensor([3.0, 4.0], requires_grad=True)
        with gs.record(backward=True) as recording:
            loss = (weight * torch.tensor([1.0, 0.0])).sum()
            loss.backward()
        graph = recording.graph

        into_leaf = next(edge for edge in graph.edges if graph.node(edge.target).leaf)
        assert into_leaf.gradient == gs.graph.EdgeGradient(norm=1.0, zeros=1, elements=2)
        assert all(edge.gradient is not None for edge in graph.edges)

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
    def test_large_and_small_gradients_are_neither_infinite_nor_zero(self, dtype):
        big, small = (3e4, 6e-8) if dtype is torch.float16 else (1e30, 1e-30)
        x = torch.ones(9, requires_grad=True, dtype=dtype)
        for value in (big, small):
            with gs.record(backward=True) as recording:
                (x * 1).backward(torch.full((9,), value, dtype=dtype))
            gradient = recording.graph.edges[0].gradient
            assert gradient.non_finite is None
            assert gradient.norm == pytest.approx(3 * float(torch.tensor(value, dtype=dtype)))

    @pytest.mark.parametrize("dtype", [torch.complex64, torch.float64])
    def test_other_dtypes(self, dtype):
        x = torch.ones(4, requires_grad=True, dtype=dtype)
        with gs.record(backward=True) as recording:
            (x * 1).abs().sum().backward()
        assert recording.graph.edges[-1].gradient.norm == pytest.approx(2)

    def test_sparse_gradients(self):
        table = nn.Embedding(4, 2, sparse=True)
        with gs.record(table, backward=True) as recording:
            table(torch.tensor([1, 1])).sum().backward()
        assert recording.graph.edges[-1].gradient.norm == pytest.approx((4 + 4) ** 0.5)

    @pytest.mark.parametrize("elements", [7, 20_000, (1 << 24) + 3])
    def test_zeros_are_counted_whatever_the_size(self, elements):
        x = torch.ones(elements, requires_grad=True)
        factor = torch.ones(elements)
        factor[1::2] = 0
        for mask, zeros in ((factor, elements // 2), (torch.zeros(()), elements)):
            with gs.record(saved=False, backward=True) as recording:
                (x * mask).sum().backward()
            gradient = recording.graph.edges[-1].gradient
            assert gradient.zeros == zeros
            assert gradient.is_zero is (zeros == elements)

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.complex64])
    def test_zeros_in_other_dtypes(self, dtype):
        x = torch.ones(3, 1000, requires_grad=True, dtype=dtype)
        factor = torch.ones(3, 1000, dtype=dtype)
        factor[:, ::3] = 0
        with gs.record(backward=True) as recording:
            (x * factor).sum().abs().backward()
        assert recording.graph.edges[-1].gradient.zeros == 3 * 334

    def test_figures_are_those_of_each_gradient_by_itself(self):
        """Views, transposes, expansions and slices of the same memory are told apart."""
        torch.manual_seed(0)
        x = torch.randn(6, 6, requires_grad=True)
        kept = []
        with gs.record(backward=True) as recording:
            parts = [
                x.t() * torch.randn(6, 6),
                x.reshape(36)[::2].relu() * 2,
                x[:3].expand(4, 3, 6) * 3,
                x.diagonal().sin(),
                x.flatten().view(4, 9).t()[1:5],
                x.unfold(0, 2, 1),
            ]
            for part in parts:
                part.register_hook(lambda g: kept.append((g.norm().item(), int((g == 0).sum()))))
            sum(part.sum() for part in parts).backward()
        graph = recording.graph

        # Hooks see what enters the node of their tensor; each has one edge that leads there.
        into = {}
        for edge in graph.edges:
            into.setdefault(edge.target, []).append(edge.gradient)
        seen = {
            (round(gradients[0].norm, 4), gradients[0].zeros)
            for gradients in into.values()
            if len(gradients) == 1
        }
        assert {(round(norm, 4), zeros) for norm, zeros in kept} <= seen
        assert all(edge.gradient is not None for edge in graph.edges)

    @pytest.mark.parametrize("elements", [3, 20_000])
    def test_large_gradients_that_a_hook_overwrites_are_not_told(self, elements):
        x = torch.ones(elements, requires_grad=True)

        def overwrite(gradient):
            gradient.mul_(0)

        with gs.record(backward=True) as recording:
            y = x.sin()
            y.register_hook(overwrite)
            (y * torch.arange(float(elements))).sum().backward()
        graph = recording.graph

        (edge,) = (edge for edge in graph.edges if graph.node(edge.target).op == "SinBackward0")
        if elements == 3:
            assert edge.gradient.norm == pytest.approx(5**0.5)
            assert not recording.not_recorded
        else:
            assert edge.gradient is None
            assert "or overwritten on the way" in graph.report.not_covered[0]
        assert not x.grad.any()

    def test_the_graph_can_be_asked_for_twice_within_the_block(self):
        with gs.record(backward=True) as recording:
            torch.ones(3, requires_grad=True).sum().backward()
            assert recording.graph is recording.graph
        assert recording.graph.edges[0].gradient.norm == pytest.approx(3**0.5)

    def test_little_is_held_at_a_time(self):
        """Recording adds megabytes to what backward takes, not the size of all its gradients."""
        y = torch.ones(1 << 20, requires_grad=True)
        for _ in range(40):
            y = y * 1.5
        peak = 0
        alive = weakref.WeakSet()

        def count(gradient):
            nonlocal peak
            alive.add(gradient.untyped_storage())
            peak = max(peak, len(alive))

        node = y.grad_fn
        handles = []
        while node.next_functions:
            handles.append(node.register_prehook(lambda gradients: count(gradients[0])))
            node = node.next_functions[0][0]
        with gs.record(backward=True):
            y.sum().backward()
        assert peak < 6

    @pytest.mark.parametrize("value", [1e200, 1e-200])
    def test_extreme_doubles(self, value):
        x = torch.ones(9, requires_grad=True, dtype=torch.float64)
        with gs.record(backward=True) as recording:
            (x * value).sum().backward()
        gradient = recording.graph.edges[-1].gradient
        assert gradient.non_finite is None
        assert gradient.norm == pytest.approx(3 * value)

    @pytest.mark.parametrize("value", ["nan", "inf"])
    @pytest.mark.parametrize("elements", [4, 40_000])
    def test_non_finite(self, value, elements):
        x = torch.ones(elements, requires_grad=True)
        factor = torch.zeros(elements)
        factor[1] = float(value)
        with gs.record(backward=True) as recording:
            (x * factor).sum().backward()
        gradient = recording.graph.edges[-1].gradient
        assert gradient == gs.graph.EdgeGradient(
            norm=None, zeros=elements - 1, elements=elements, non_finite=value
        )

    def test_hooks_of_the_user_stay_and_ours_go(self):
        x = torch.ones(3, requires_grad=True)
        calls = []
        loss = x.exp().sum()
        node = loss.grad_fn.next_functions[0][0]
        node.register_hook(lambda *_: calls.append("before"))
        with gs.record(saved=False, backward=True) as recording:
            loss.backward(retain_graph=True)
        node.register_hook(lambda *_: calls.append("after"))
        graph = recording.graph
        loss.backward()

        assert calls == ["before", "before", "after"]
        assert all(edge.gradient.norm == pytest.approx(3**0.5, rel=2) for edge in graph.edges)
        assert torch.allclose(x.grad, 2 * torch.ones(3).exp())

    def test_the_last_backward_is_the_graph(self):
        x = torch.ones(2, requires_grad=True)
        with gs.record(backward=True) as recording:
            x.sin().sum().backward()
            x.cos().sum().backward()
        assert [node.op for node in recording.graph.nodes][1] == "CosBackward0"
        assert recording.graph is recording.graph

    def test_failing_backward_raises_as_it_does(self):
        x = torch.ones(2, requires_grad=True)
        loss = x.exp().sum()
        loss.backward()
        with pytest.raises(RuntimeError, match="second time"), gs.record(backward=True):
            loss.backward()

    def test_nothing_to_differentiate_is_torchs_to_say(self):
        with (
            pytest.raises(RuntimeError, match="does not require grad"),
            gs.record(backward=True),
        ):
            torch.ones(1).backward()


class TestRefused:
    def test_no_backward(self):
        with gs.record() as recording:
            pass
        with pytest.raises(gs.UsageError, match="backward=True"):
            _ = recording.graph
        with gs.record(backward=True) as recording:
            pass
        with pytest.raises(gs.UsageError, match="no backward ran"):
            _ = recording.graph

    def test_entered_twice(self):
        recording = gs.record()
        with recording:
            pass
        with pytest.raises(gs.UsageError, match="entered before"), recording:
            pass
        assert "over" in repr(recording)

    def test_wrong_types(self):
        with pytest.raises(gs.UsageError, match="got int"):
            gs.record(3)
        with pytest.raises(gs.UsageError, match=r"what gs.record\(\) returns, got str"):
            gs.trace_graph(torch.ones(1, requires_grad=True).sum(), recording="rec")
