"""The private names of torch that auditing touches still do what it takes them to do."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from torch.autograd.graph import disable_saved_tensors_hooks, saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode

from gradcheck_suite import _torch_compat as compat


def test_the_version_counter_moves_with_each_write():
    tensor = torch.zeros(3)
    before = compat.version_of(tensor)
    tensor.add_(1)
    tensor.data.add_(1)
    assert compat.version_of(tensor) == before + 1
    with torch.inference_mode():
        kept = torch.zeros(2)
    with pytest.raises(RuntimeError, match="version counter"):
        compat.version_of(kept)


def test_the_running_node_is_known_inside_backward_only():
    seen = []

    def unpack(packed):
        seen.append((compat.inside_backward(), compat.current_node().name()))
        return packed

    with saved_tensors_hooks(lambda tensor: tensor.detach(), unpack):
        loss = torch.randn(3, requires_grad=True).exp().sum()
    assert not compat.inside_backward()
    assert compat.current_node() is None
    loss.backward()
    assert seen == [(True, "ExpBackward0")]


def test_a_saved_tensor_is_found_under_its_name():
    packed = []

    class Box:
        def __init__(self, tensor):
            self.tensor = tensor

    def pack(tensor):
        packed.append(Box(tensor.detach()))
        return packed[-1]

    with saved_tensors_hooks(pack, compat.answering(lambda box: box.tensor)):
        x = torch.randn(3, requires_grad=True)
        product = x.tanh() * x.exp()
    nodes = [product.grad_fn, *(node for node, _ in product.grad_fn.next_functions)]
    names = {compat.saved_as(node, box) for node in nodes for box in packed}
    assert names == {None, "self", "other", "result"}
    product.sum().backward()
    assert {compat.saved_as(node, box) for node in nodes for box in packed} == {None}


def test_every_backward_passes_the_entry_points(monkeypatch):
    calls = []
    for owner, name in compat.engine_entry_points():
        original = getattr(owner, name)

        def watched(*args, original=original, **kwargs):
            calls.append(args[0])
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, watched)
    x = torch.randn(3, requires_grad=True)
    x.sum().backward()
    torch.autograd.backward(x.sum())
    torch.autograd.grad(x.sum(), x)
    assert len(calls) == 3


def test_without_the_engines_name_the_public_functions_stand_in(monkeypatch):
    monkeypatch.delattr(torch.autograd, "_engine_run_backward")
    assert compat.engine_entry_points() == (
        (torch.autograd, "backward"),
        (torch.autograd, "grad"),
    )


def test_hooks_are_pushed_seen_and_removed_from_below():
    mine = (lambda tensor: tensor, lambda tensor: tensor)
    assert compat.top_saved_tensors_hooks() is None
    compat.push_saved_tensors_hooks(*mine)
    with saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor):
        above = compat.top_saved_tensors_hooks()
        assert compat.remove_saved_tensors_hooks(mine)
        assert compat.top_saved_tensors_hooks()[0] is above[0]
    assert compat.top_saved_tensors_hooks() is None
    assert not compat.remove_saved_tensors_hooks(mine)


def test_disabled_hooks_are_noticed():
    assert not compat.saved_tensors_hooks_are_disabled()
    with disable_saved_tensors_hooks("not here"):
        assert compat.saved_tensors_hooks_are_disabled()


def test_the_functions_that_write_are_found():
    found = compat.in_place_functions()
    names = {name for owner, name in found if owner is torch.Tensor}
    assert {"add_", "copy_", "zero_", "__setitem__", "__iadd__", "index_put_"} <= names
    assert not names & {"requires_grad_", "detach_", "__init__", "retain_grad"}
    assert (torch, "relu_") in found
    assert (torch, "_foreach_mul_") in found
    assert (torch._C._nn, "leaky_relu_") in found
    assert len(set(found)) == len(found)


def test_torchscript_learns_and_forgets_a_replacement():
    def replacement(x):
        return torch.relu_(x)

    table = torch.jit._builtins._get_builtin_table()
    before = dict(table)
    assert compat.teach_torchscript({replacement: torch.relu_}) == 1
    assert table[id(replacement)] == "aten::relu_"
    compat.forget_torchscript([replacement])
    assert table == before
    assert compat.teach_torchscript({replacement: print}) == 0


def test_the_compilers_table_is_dropped_if_there_is_one(monkeypatch):
    cleared = []
    table = SimpleNamespace(cache_clear=lambda: cleared.append(True))
    rules = SimpleNamespace(get_torch_obj_rule_map=table)
    monkeypatch.setitem(sys.modules, "torch._dynamo.trace_rules", rules)
    compat.forget_compiler_tables()
    assert cleared == [True]
    monkeypatch.delitem(sys.modules, "torch._dynamo.trace_rules")
    compat.forget_compiler_tables()
    assert cleared == [True]


def test_a_dispatch_mode_is_noticed():
    calls = []

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            calls.append(str(function))
            return function(*args, **(kwargs or {}))

    tensor = torch.zeros(3)
    assert not compat.dispatch_mode_is_active()
    with Mode():
        assert compat.dispatch_mode_is_active()
        tensor.sin()
        with compat.without_dispatch_modes():
            tensor.cos()
    assert calls == ["aten.sin.default"]


def test_torch_function_is_silenced():
    calls = []

    class Mine(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            calls.append(function)
            return super().__torch_function__(function, types, args, kwargs or {})

    tensor = torch.zeros(3).as_subclass(Mine)
    calls.clear()
    with compat.without_torch_function():
        tensor.data_ptr()
    assert calls == []
    tensor.data_ptr()
    assert len(calls) == 1


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace:DeprecationWarning")
def test_a_trace_in_progress_is_seen():
    seen = []

    def traced(tensor):
        seen.append(compat.jit_is_tracing())
        return tensor + 1

    torch.jit.trace(traced, torch.zeros(2), check_trace=False)
    assert seen == [True]
    assert not compat.jit_is_tracing()


def test_whether_a_transform_runs():
    seen = []
    torch.func.grad(lambda x: seen.append(compat.transform_is_active()) or x * x)(torch.ones(()))
    assert seen == [True]
    assert not compat.transform_is_active()


@pytest.mark.slow
def test_a_process_knows_whether_it_has_made_an_optimizer(monkeypatch):
    code = """
import torch
from gradcheck_suite._torch_compat import optimizer_was_made

class Own(torch.optim.Adam):
    pass

assert not optimizer_was_made()
Own([torch.zeros(1, requires_grad=True)])
assert optimizer_was_made()
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    monkeypatch.delattr(torch.optim.Optimizer, "_patch_step_function")
    assert compat.optimizer_was_made()


def test_what_a_backward_keeps_and_makes_is_read_where_torch_hands_it_over(monkeypatch):
    read = []

    def run(_outputs, *args, **kwargs):
        read.append(compat.keeps_and_makes_graph(args, kwargs))
        return (torch.zeros(3),)

    for owner, name in compat.engine_entry_points():
        monkeypatch.setattr(owner, name, run)
    x = torch.randn(3, requires_grad=True)
    x.sum().backward()
    x.sum().backward(retain_graph=True)
    torch.autograd.grad(x.sum(), x, create_graph=True)
    assert read == [(False, False), (True, False), (True, True)]
    assert compat.keeps_and_makes_graph((), {"retain_graph": True}) == (True, False)
