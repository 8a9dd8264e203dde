from __future__ import annotations

import gc
import os
import weakref
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

import gradcheck_suite as gs
from tests import warm_python

# Timed in a process of its own, as measuring coverage slows every line down. The two depths take
# turns, so that a machine which changes its speed changes both.
TIME_DEEP_GRAPHS = """
import time
import torch
import gradcheck_suite as gs

def chain(depth):
    y = torch.ones(1, requires_grad=True)
    for _ in range(depth):
        y = y * 1.0
    return y

def seconds(y):
    start = time.process_time()
    gs.trace_graph(y)
    return time.process_time() - start

shallow, deep = chain(10_000), chain(100_000)
seconds(shallow)
pairs = [(seconds(shallow), seconds(deep)) for _ in range(3)]
print(min(after / before for before, after in pairs))
"""


class Once(torch.autograd.Function):
    @staticmethod
    def forward(_, x):
        return x * 1

    @staticmethod
    @once_differentiable
    def backward(_, grad):
        return grad


def name_of(node):
    return node.name().rpartition("::")[-1]


class TestSubjects:
    def test_has_every_node_once_and_every_edge(self, subject, truth):
        loss, model = subject()
        nodes, edges = truth(loss)

        graph = gs.trace_graph(loss, model=model)

        assert Counter(node.op for node in graph.nodes) == Counter(map(name_of, nodes))
        assert [node.id for node in graph.nodes] == list(range(1, len(nodes) + 1))
        seen = Counter(
            (graph.node(edge.source).op, graph.node(edge.target).op, edge.input_index)
            for edge in graph.edges
        )
        assert seen == Counter((name_of(a), name_of(b), index) for a, b, index, _ in edges)
        assert len(graph.edges) == len(edges)

    def test_same_code_gives_the_same_graph(self, subject):
        first, second = (gs.trace_graph(*subject()) for _ in range(2))

        def comparable(graph):
            return [
                (node.id, node.op, node.kind, node.outputs, node.saved, node.leaf)
                for node in graph.nodes
            ]

        assert comparable(first) == comparable(second)
        assert first.edges == second.edges

    def test_tracing_twice_gives_equal_graphs(self, subject):
        loss, model = subject()

        assert gs.trace_graph(loss, model=model) == gs.trace_graph(loss, model=model)

    def test_gradients_are_bit_identical(self, subject):
        def gradients(*, traced):
            loss, model = subject()
            leaves = [node.variable for node in self._leaf_nodes(loss) if hasattr(node, "variable")]
            if traced:
                str(gs.trace_graph(loss, model=model))
            loss.backward()
            if traced:
                str(gs.trace_graph(loss, model=model))
            return [leaf.grad for leaf in leaves]

        plain, traced = gradients(traced=False), gradients(traced=True)

        assert plain
        assert all(torch.equal(a, b) for a, b in zip(plain, traced, strict=True))

    @staticmethod
    def _leaf_nodes(loss):
        seen, pending = [], [loss.grad_fn]
        while pending:
            node = pending.pop()
            if node not in seen:
                seen.append(node)
                pending.extend(target for target, _ in node.next_functions if target)
        return seen

    def test_ids_are_the_order_in_which_backward_runs(self, subject, truth):
        loss, model = subject()
        ran = []
        handles = [
            node.register_prehook(lambda _, node=node: ran.append(name_of(node)))
            for node in truth(loss)[0]
        ]
        graph = gs.trace_graph(loss, model=model)

        loss.backward()

        assert ran == [node.op for node in graph.nodes]
        assert len(handles) == len(ran)


class TestNodes:
    def test_tells_shape_dtype_sequence_and_root(self):
        x = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)

        graph = gs.trace_graph({"loss": x.exp().sum()})

        total, exp, leaf = graph.nodes
        assert (total.op, exp.op, leaf.op) == ("SumBackward0", "ExpBackward0", "AccumulateGrad")
        assert exp.outputs == (gs.graph.TensorType((2, 3), "float64"),)
        assert total.sequence_number > exp.sequence_number
        assert leaf.sequence_number is None
        assert (leaf.kind, leaf.leaf.name) == ("leaf", "unnamed")
        assert graph.roots == (gs.graph.Root("['loss']", 1, 0, gs.graph.TensorType((), "float64")),)

    def test_edges_say_which_output_and_input(self):
        x = torch.randn(4, 2, requires_grad=True)
        _, second = x.split(2)

        graph = gs.trace_graph(2 - second)

        assert [(edge.input_index, edge.output_index) for edge in graph.edges] == [(0, 1), (0, 0)]

    def test_counts_inputs_that_need_no_gradient(self):
        x = torch.randn(3, requires_grad=True)

        node = gs.trace_graph(x * torch.randn(3)).nodes[0]

        assert node.inputs_without_gradient == 1

    def test_names_leaves_by_the_model_with_all_names_of_a_tied_one(self):
        model = nn.ModuleDict({"a": nn.Linear(3, 3, bias=False), "b": nn.Linear(3, 3)})
        model["b"].weight = model["a"].weight
        stray = torch.randn(2, 3, requires_grad=True)

        graph = gs.trace_graph(model["b"](model["a"](stray)), model=model)

        leaves = {node.leaf.name: node.leaf for node in graph.leaves}
        assert leaves["a.weight"].names == ("a.weight", "b.weight")
        assert leaves["a.weight"].is_parameter
        assert not leaves["unnamed"].is_parameter
        assert set(leaves) == {"a.weight", "b.bias", "unnamed"}

    def test_custom_function_is_located_at_its_class(self, square):
        x = torch.randn(3, requires_grad=True)

        node = gs.trace_graph(square.apply(x)).nodes[0]

        assert node.kind == "custom function"
        assert node.location.path.endswith("conftest.py")
        lines = Path(node.location.path).read_text().splitlines()
        assert lines[node.location.line - 1] == "    def forward(ctx, x):"

    def test_custom_function_without_source_has_no_location(self):
        namespace = {"torch": torch}
        exec(
            "class Same(torch.autograd.Function):\n"
            "    @staticmethod\n"
            "    def forward(ctx, x): return x.clone()\n"
            "    @staticmethod\n"
            "    def backward(ctx, grad): return grad\n",
            namespace,
        )

        node = gs.trace_graph(namespace["Same"].apply(torch.ones(2, requires_grad=True))).nodes[0]

        assert (node.kind, node.location) == ("custom function", None)

    def test_a_leaf_is_a_graph_of_one_node(self):
        graph = gs.trace_graph(torch.ones(2, requires_grad=True))

        assert [node.kind for node in graph.nodes] == ["leaf"]
        assert graph.edges == ()

    def test_several_roots_share_their_nodes(self):
        x = torch.randn(3, requires_grad=True)
        hidden = x.exp()

        graph = gs.trace_graph({"a": hidden.sum(), "b": [hidden.mean(), torch.ones(1)]})

        assert [root.name for root in graph.roots] == ["['a']", "['b'][0]"]
        assert [node.op for node in graph.nodes].count("ExpBackward0") == 1
        assert graph.ignored == ("['b'][1]",)

    def test_a_root_that_another_root_needs(self):
        x = torch.randn(3, requires_grad=True)
        hidden = x.exp()

        graph = gs.trace_graph([hidden, hidden.sum()])

        assert [node.op for node in graph.nodes] == [
            "SumBackward0",
            "ExpBackward0",
            "AccumulateGrad",
        ]
        assert [root.node for root in graph.roots] == [2, 1]

    def test_graph_of_a_gradient(self):
        x = torch.randn(3, requires_grad=True)
        (grad,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)

        graph = gs.trace_graph(grad)

        assert [node.leaf.type.shape for node in graph.leaves] == [(3,)]

    @pytest.mark.parametrize("use_reentrant", [True, False])
    def test_checkpointed_graph(self, use_reentrant):
        layer = nn.Linear(3, 3)
        x = torch.randn(2, 3, requires_grad=True)
        calls = []

        def block(value):
            calls.append(None)
            return layer(value).tanh()

        loss = checkpoint(block, x, use_reentrant=use_reentrant).sum()
        graph = gs.trace_graph(loss, model=layer)

        assert len(calls) == 1, "tracing must not recompute"
        assert graph.findings == ()
        loss.backward()
        assert len(calls) == 2

    def test_a_place_where_backward_raises(self):
        x = torch.ones(2, requires_grad=True)
        (grad,) = torch.autograd.grad(
            Once.apply(x), x, torch.ones(2, requires_grad=True), create_graph=True
        )

        graph = gs.trace_graph(grad)

        assert (graph.nodes[0].op, graph.nodes[0].kind) == ("Error", "undefined")
        assert "#1 Error  (2,) float32  backward raises here" in str(graph)

    def test_nested_tensors_have_no_shape(self):
        nested = torch.nested.nested_tensor(
            [torch.ones(2, 3), torch.ones(1, 3)], layout=torch.jagged, requires_grad=True
        )

        graph = gs.trace_graph(nested * 2)

        assert [node.outputs for node in graph.nodes] == [(None,), (None,)]
        assert graph.leaves[0].leaf.type is None
        assert "unnamed  unknown shape  leaf tensor" in str(graph)

    def test_node_rejects_an_unknown_id(self):
        graph = gs.trace_graph(torch.ones(2, requires_grad=True))

        with pytest.raises(KeyError, match="ids run from 1 to 1"):
            graph.node(2)


class TestLifetime:
    def test_graph_keeps_no_tensor_alive(self, square):
        x = torch.randn(3, requires_grad=True)
        hidden = square.apply(x * 2)
        saved = weakref.ref(hidden.grad_fn)
        loss = hidden.exp().sum()
        result = weakref.ref(hidden)

        graph = gs.trace_graph(loss)
        del loss, hidden
        gc.collect()

        assert saved() is None
        assert result() is None
        assert len(graph.nodes) == 5

    @pytest.mark.slow
    def test_deep_graph_is_traced_and_freed(self):
        x = torch.ones(1, requires_grad=True)
        y = x
        for _ in range(100_000):
            y = y * 1.0

        graph = gs.trace_graph(y)
        del y

        assert len(graph.nodes) == 100_001

    @pytest.mark.slow
    def test_the_time_of_a_deep_graph_grows_with_its_nodes_alone(self):
        environment = {k: v for k, v in os.environ.items() if not k.startswith("COVERAGE_")}
        done = warm_python.run(["-c", TIME_DEEP_GRAPHS], env=environment)
        assert float(done.stdout) < 20  # ten times the nodes; a quadratic walk takes 100

    @pytest.mark.slow
    def test_deep_chain_of_custom_functions(self, square):
        y = torch.ones(1, requires_grad=True)
        for _ in range(30_000):
            y = square.apply(y)

        graph = gs.trace_graph(y)
        del y

        assert len({node.location for node in graph.nodes}) == 2

    @pytest.mark.slow
    def test_branching_deep_graph_is_traced_and_freed(self):
        weight = torch.ones(1, requires_grad=True)
        state = old = torch.zeros(1)
        for _ in range(15_000):
            state, old = state + weight * old, state

        assert len(gs.trace_graph(state).leaves) == 1
        del state, old

    def test_deep_graph_still_runs_backward(self):
        x = torch.ones(1, requires_grad=True)
        y = x
        for _ in range(6_000):
            y = y + x

        gs.trace_graph(y)
        y.backward()

        assert x.grad.item() == 6_001

    def test_garbage_collection_is_left_as_it_was(self):
        x = torch.ones(1, requires_grad=True)
        gc.disable()
        try:
            gs.trace_graph(x)
            assert not gc.isenabled()
        finally:
            gc.enable()

        gs.trace_graph(x)
        assert gc.isenabled()
