"""The private names of torch that the graph is read through, and what happens without them."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
from types import SimpleNamespace

import pytest
import torch

from gradcheck_suite._torch_compat import (
    HOOKED,
    add_post_hooks,
    answering,
    custom_function_class,
    flattened,
    hooks_registered,
    is_view,
    keeps_its_size,
    next_sequence_number,
    node_metadata,
    node_output_types,
    node_sequence_number,
    read_saved,
    saved_attribute_names,
    sequence_numbers,
    storage_address,
    storage_key,
)


class Bare:
    """A node of a torch that exposes nothing."""


@pytest.fixture
def node():
    return torch.ones(3, requires_grad=True).exp().grad_fn


class TestPresent:
    def test_the_next_sequence_number_is_that_of_the_next_node(self):
        x = torch.ones(3, requires_grad=True)
        number = next_sequence_number()

        assert node_sequence_number(x.exp().grad_fn) == number

    def test_views_are_known(self):
        x = torch.ones(3)
        assert is_view(x[:2])
        assert not is_view(x)

    @pytest.mark.parametrize("make", [torch.exp, torch.square])
    def test_saved_tensors_that_were_overwritten(self, make):
        x = torch.ones(3, requires_grad=True).clone()
        y = make(x)
        name = "_raw_saved_result" if make is torch.exp else "_raw_saved_self"
        assert not read_saved(y.grad_fn, name).modified
        node = y.grad_fn
        (y if make is torch.exp else x).add_(1)
        assert read_saved(node, name).modified == (0,)

    def test_what_hooks_packed_can_be_unwrapped(self):
        unpack = answering(lambda packed: packed.tensor)
        with torch.autograd.graph.saved_tensors_hooks(lambda t: SimpleNamespace(tensor=t), unpack):
            node = torch.ones(3, requires_grad=True).exp().grad_fn

        raw = read_saved(node, "_raw_saved_result", lambda packed: (packed.tensor, True))
        assert isinstance(raw.tensors[0], torch.Tensor)
        assert raw.modified == (0,)

    def test_sequence_numbers_rise_and_leaves_have_none(self, node):
        later = torch.ones(3, requires_grad=True).exp().grad_fn

        assert node_sequence_number(later) > node_sequence_number(node)
        assert node_sequence_number(node.next_functions[0][0]) is None

    def test_output_types(self, node):
        assert node_output_types(node) == (((3,), torch.float32),)

    def test_saved_attribute_names(self, node):
        assert saved_attribute_names(type(node)) == ("_raw_saved_result",)

    def test_read_saved(self, node):
        raw = read_saved(node, "_raw_saved_result")

        assert (raw.name, raw.freed) == ("result", False)
        assert torch.equal(raw.tensors[0], torch.ones(3).exp())

    def test_read_saved_after_backward(self):
        y = torch.ones(3, requires_grad=True).exp()
        y.sum().backward()

        raw = read_saved(y.grad_fn, "_raw_saved_result")

        assert (raw.tensors, raw.freed) == ((None,), True)

    def test_read_saved_by_hooks(self):
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda _: 1 / 0):
            y = torch.ones(3, requires_grad=True).exp()

        assert read_saved(y.grad_fn, "_raw_saved_result").tensors == (HOOKED,)

    def test_custom_function_class(self, node, square):
        assert custom_function_class(node) is None
        assert custom_function_class(square.apply(torch.ones(2, requires_grad=True)).grad_fn) is (
            square
        )

    def test_storage_key_is_shared_by_views_only(self):
        x = torch.ones(4)

        assert storage_key(x) == storage_key(x[1:]) is not None
        assert storage_key(x) != storage_key(x.clone())
        assert storage_key(torch.ones(2, device="meta")) is not None
        assert storage_key(torch.eye(2).to_sparse()) is None

    def test_metadata_is_a_dict_of_the_node(self, node):
        node_metadata(node)["key"] = 1

        assert node_metadata(node) == {"key": 1}


class TestMissing:
    def test_fallbacks(self):
        assert node_sequence_number(Bare()) is None
        assert node_output_types(Bare()) == ()
        assert saved_attribute_names(Bare) == ()
        assert custom_function_class(Bare()) is None


@pytest.mark.slow
def test_a_process_that_ends_with_deep_graphs_ends_well():
    """Deep graphs that are alive at exit, or just released, must not take the process down."""
    script = """
        import torch
        import gradcheck_suite as gs
        graphs = []
        for _ in range(2):
            y = torch.ones(1, requires_grad=True)
            for _ in range(60_000):
                y = y * 1.0
            gs.trace_graph(y)
            graphs.append(y)
        del graphs[0]
        print("last line")
    """

    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, "last line\n", "")


class TestPostHooks:
    @pytest.mark.parametrize("present", [True, False])
    def test_many_are_added_and_taken_away(self, present, monkeypatch):
        if not present:
            monkeypatch.delattr(torch.autograd.function, "_HookMixin")
        x = torch.ones(3, requires_grad=True)
        loss = x.exp().sum()
        nodes = [loss.grad_fn, loss.grad_fn.next_functions[0][0]]
        seen = []
        handle = nodes[0].register_hook(lambda *_: seen.append("mine"))

        remove = add_post_hooks(
            [(node, lambda *_, node=node: seen.append(node.name())) for node in nodes]
        )
        later = nodes[1].register_hook(lambda *_: seen.append("later"))
        loss.backward(retain_graph=True)
        assert seen == ["mine", "SumBackward0", "ExpBackward0", "later"]

        remove()
        handle.remove()
        loss.backward(retain_graph=True)
        assert seen[4:] == ["later"]
        later.remove()
        loss.backward()
        assert len(seen) == 5

    def test_hooks_of_other_threads_keep_their_handles(self):
        loss = torch.ones(3, requires_grad=True).exp().sum()
        handles = []

        def hooks():
            thread = threading.Thread(
                target=lambda: handles.append(loss.grad_fn.register_hook(lambda *_: None))
            )
            thread.start()
            thread.join()
            yield loss.grad_fn, lambda *_: None

        add_post_hooks(hooks())()
        handles[0].remove()


class TestHooksRegistered:
    def test_each_hook_counts(self, node):
        before = hooks_registered()
        node.register_hook(print)
        torch.ones(1, requires_grad=True).register_hook(print)
        torch.nn.ReLU().register_forward_hook(print)
        assert hooks_registered() == before + 3

    def test_none_without_the_count(self, monkeypatch):
        monkeypatch.delattr(torch.utils.hooks.RemovableHandle, "next_id")
        assert hooks_registered() is None


class TestKeepsItsSize:
    @pytest.mark.parametrize(("after", "keeps"), [((3, 1), True), ((3, 4), False)])
    def test_expansions(self, node, after, keeps):
        assert keeps_its_size(torch.ones(3, 1, requires_grad=True).expand(after).grad_fn) is keeps
        assert not keeps_its_size(node)


class TestFlattened:
    @pytest.mark.parametrize("without", [False, True])
    def test_elements_follow_one_another(self, monkeypatch, without):
        if without:
            monkeypatch.delattr(torch._utils, "_flatten_dense_tensors")
        joined = flattened([torch.ones(2, 2), torch.arange(6.0).view(2, 3).t()])
        assert joined.tolist() == [1, 1, 1, 1, 0, 3, 1, 4, 2, 5]


def test_sequence_numbers_of_many_nodes_are_those_of_each():
    x = torch.ones(2, requires_grad=True)
    y = (x * 2).exp()
    leaf = y.grad_fn.next_functions[0][0].next_functions[0][0]
    nodes = [y.grad_fn, leaf]
    assert sequence_numbers(nodes) == (node_sequence_number(y.grad_fn), -1)
    assert sequence_numbers([object()]) == (-1,)


def test_a_storage_has_an_address_of_its_own():
    x, y = torch.ones(3), torch.ones(3)
    address = storage_address(x.untyped_storage())
    assert address == storage_address(x[1:].untyped_storage()) == storage_key(x)
    assert address != storage_address(y.untyped_storage())
    assert storage_key(torch.ones(2).to_sparse()) is None
