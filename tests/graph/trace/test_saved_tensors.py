from __future__ import annotations

import pytest
import torch
from torch import nn

import gradcheck_suite as gs


def saved_by(graph, op):
    (node,) = (node for node in graph.nodes if node.op == op)
    return {saved.name: saved for saved in node.saved}


class TestBytes:
    def test_a_storage_counts_once(self):
        x = torch.randn(10, requires_grad=True)
        hidden = x.exp()  # exp saves its result, which both multiplications save as well

        graph = gs.trace_graph((hidden * hidden).sum())

        assert graph.saved_bytes == 40
        assert saved_by(graph, "ExpBackward0")["result"].owner is not None
        mul = saved_by(graph, "MulBackward0")
        assert [saved.bytes for saved in mul.values()] == [40, 0]

    def test_a_saved_view_counts_the_storage_that_it_keeps_alive(self):
        x = torch.randn(5, requires_grad=True)
        big = torch.randn(100)

        saved = saved_by(gs.trace_graph(x * big[:5]), "MulBackward0")["other"]

        assert saved.type.shape == (5,)
        assert saved.bytes == 400

    def test_parameters_leaves_and_buffers_cost_nothing(self):
        model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
        x = torch.randn(5, 3)

        graph = gs.trace_graph(model(x), model=model)

        norm = saved_by(graph, "NativeBatchNormBackward0")
        assert norm["weight"].owner == "parameter 1.weight"
        assert norm["running_mean"].owner == "buffer 1.running_mean"
        assert norm["weight"].bytes == norm["running_mean"].bytes == 0
        assert saved_by(graph, "AddmmBackward0")["mat1"].bytes == 60

    def test_a_leaf_that_is_saved_costs_nothing(self):
        x = torch.randn(5, requires_grad=True)

        graph = gs.trace_graph(x * x)

        assert graph.saved_bytes == 0
        assert {saved.owner for saved in graph.nodes[0].saved} == {"leaf"}

    def test_custom_function_and_list_of_saved_tensors(self, square):
        x = torch.randn(6, requires_grad=True)

        graph = gs.trace_graph(square.apply(x * 2)[torch.tensor([0, 1])])

        assert saved_by(graph, "SquareBackward")["tensors"].bytes == 24
        assert saved_by(graph, "IndexBackward0")["indices"].type.dtype == "int64"

    def test_sparse_tensors_have_unknown_bytes_and_that_is_said(self):
        x = torch.randn(3, 3, requires_grad=True)
        sparse = torch.eye(3).to_sparse()

        graph = gs.trace_graph(torch.sparse.mm(sparse, x))

        assert any(
            saved.storage_bytes is None and not saved.hooked
            for node in graph.nodes
            for saved in node.saved
        )
        assert "without a storage" in graph.report.not_covered[0]


class TestHooks:
    def test_unpack_hooks_are_not_run(self):
        x = torch.randn(3, requires_grad=True)

        def unpack(_):
            raise AssertionError("an unpack hook was run")

        with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, unpack):
            loss = x.exp().sum()
        graph = gs.trace_graph(loss)

        saved = saved_by(graph, "ExpBackward0")["result"]
        assert (saved.hooked, saved.type, saved.bytes) == (True, None, 0)
        assert "saved-tensor hooks" in graph.report.not_covered[0]
        assert graph.state.startswith("Saved tensors are in place")

    def test_copy_slices_is_said_to_hide_what_it_saved(self):
        x = torch.randn(4, requires_grad=True)
        y = x.clone()
        y[:2].mul_(2)

        graph = gs.trace_graph(y)

        (node,) = (node for node in graph.nodes if node.op == "CopySlices")
        assert not node.saved_is_visible
        assert not graph.saved_bytes_are_complete
        assert "at least 0 bytes saved" in str(graph)
        assert "CopySlices" in graph.report.not_covered[0]


class TestState:
    def test_before_and_after_backward(self, square):
        x = torch.randn(3, requires_grad=True)
        loss = square.apply(x.exp()).sum()

        before = gs.trace_graph(loss)
        loss.backward()
        after = gs.trace_graph(loss)

        assert before.state == "Saved tensors are in place: backward can run."
        assert "already run and freed" in after.state
        assert [node.op for node in after.nodes if node.freed] == [
            "SquareBackward",
            "ExpBackward0",
        ]
        assert after.saved_bytes == 0

    def test_retain_graph_frees_nothing(self):
        loss = torch.randn(3, requires_grad=True).exp().sum()

        loss.backward(retain_graph=True)

        assert "backward can run" in gs.trace_graph(loss).state

    def test_partly_freed(self):
        x = torch.randn(3, requires_grad=True)
        hidden = x.exp()
        first, second = hidden.sum(), hidden.sin().sum()

        first.backward()

        assert "1 of 2 nodes" in gs.trace_graph(second).state

    def test_a_place_left_empty_is_not_freed(self):
        x = torch.randn(4, 4, requires_grad=True)

        graph = gs.trace_graph(nn.LayerNorm(4, elementwise_affine=False)(x))

        assert not any(node.freed for node in graph.nodes)

    def test_nothing_saved(self):
        loss = torch.randn(3, requires_grad=True).sum()

        loss.backward()

        assert gs.trace_graph(loss).state == "Nothing in this graph saved a tensor for backward."


@pytest.mark.parametrize("hooked", [True, False])
def test_hooks_on_nodes_and_tensors_do_not_run(hooked):
    x = torch.randn(3, requires_grad=True)
    loss = x.exp().sum()
    ran = []
    if hooked:
        x.register_hook(ran.append)
        loss.grad_fn.register_prehook(ran.append)

    gs.trace_graph(loss)

    assert ran == []
