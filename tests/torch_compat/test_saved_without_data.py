"""What a node saved is read by unpacking where torch does not tell it; no other's hook runs."""

from __future__ import annotations

import gc
import sys
import weakref

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

from gradcheck_suite._torch_compat import HOOKED, nodes, read_saved, saved_as, saves_under


@pytest.fixture(autouse=True)
def _a_torch_that_tells_nothing(monkeypatch):
    monkeypatch.setattr(nodes, "SAVED_TENSORS_TELL", False)


class Kept:
    def __init__(self, tensor):
        self.tensor = tensor
        self.version = tensor._version


def unwrap(packed):
    return packed.tensor, packed.tensor._version != packed.version


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, None, y)
        return x * y

    @staticmethod
    def backward(ctx, grad_output):
        x, _, y = ctx.saved_tensors
        return grad_output * y, grad_output * x


def inputs():
    x = torch.arange(3.0, requires_grad=True)
    return x.clone(), x.clone() + 5.0


def test_plain_tensors_are_read():
    x, y = inputs()
    node = (x * y).grad_fn
    assert read_saved(node, "_raw_saved_self").tensors[0] is x
    assert not read_saved(node, "_raw_saved_self").modified
    product = Product.apply(x, y)  # torch 2.6 frees what it saved together with it
    custom = product.grad_fn
    first, empty, last = read_saved(custom, "_raw_saved_tensors").tensors
    assert (first is x, empty, last is y) == (True, None, True)


def test_places_that_are_empty_are_told_from_freed_ones():
    x, _ = inputs()
    node = torch.nn.functional.layer_norm(x, (3,)).grad_fn
    assert read_saved(node, "_raw_saved_weight") == nodes.RawSaved("weight", (None,), freed=False)
    result = x.exp()
    result.sum().backward()
    assert read_saved(result.grad_fn, "_raw_saved_result").freed


def test_what_was_overwritten_is_known_without_its_type():
    x, y = inputs()
    node = (x * y).grad_fn
    x.detach().add_(1.0)
    assert read_saved(node, "_raw_saved_self") == nodes.RawSaved(
        "self", (None,), freed=False, modified=(0,)
    )
    assert not read_saved(node, "_raw_saved_other").modified


@pytest.mark.parametrize("make", [torch.mul, Product.apply])
def test_hooks_of_others_do_not_run(make):
    ran = []
    with saved_tensors_hooks(lambda tensor: tensor, lambda tensor: ran.append(1) or tensor):
        result = make(*inputs())
    node = result.grad_fn
    profile = sys.getprofile()
    for name in nodes.saved_attribute_names(type(node)):
        raw = read_saved(node, name, unwrap)
        assert set(raw.tensors) == {HOOKED}
        assert not raw.freed
        assert saved_as(node, object()) is None
    assert ran == []
    assert sys.getprofile() is profile
    # The graph is whole.
    result.sum().backward()
    assert len(ran) == 2


def test_hooks_of_ours_answer():
    kept = []

    def pack(tensor):
        kept.append(Kept(tensor.detach()))
        return kept[-1]

    unpacked = []

    def unpack(packed):
        unpacked.append(packed)
        return packed.tensor

    with saved_tensors_hooks(pack, nodes._answering(unpack)):
        x, y = inputs()
        node = (x * y).grad_fn
        product = Product.apply(x, y)
    custom = product.grad_fn
    names = {saved_as(node, each) for each in kept}
    assert names == {None, "self", "other"}
    assert saves_under(node, saved_as(node, kept[0]), kept[0])
    assert saved_as(custom, kept[-1]) == "tensors"
    kept[-1].tensor.add_(1.0)
    raw = read_saved(custom, "_raw_saved_tensors", unwrap)
    assert [None if each is None else each.data_ptr() for each in raw.tensors] == [
        x.data_ptr(),
        None,
        y.data_ptr(),
    ]
    assert 2 in raw.modified
    assert unpacked == []


def test_a_profiler_at_work_is_left_alone():
    node = torch.ones(1, requires_grad=True).exp().grad_fn

    def profile(frame, event, argument):
        pass

    sys.setprofile(profile)
    try:
        raw = read_saved(node, "_raw_saved_result")
        assert sys.getprofile() is profile
    finally:
        sys.setprofile(None)
    assert raw.tensors == (HOOKED,)


def test_reading_keeps_nothing_alive():
    gc.disable()
    try:
        result = torch.ones(1, requires_grad=True).exp()
        result.sum().backward()
        mark = type("Mark", (), {})()
        gone = weakref.ref(mark)
        result.grad_fn.metadata["mark"] = mark
        assert read_saved(result.grad_fn, "_raw_saved_result").freed
        del result, mark
        assert gone() is None
    finally:
        gc.enable()


def test_a_collection_does_not_run_while_hooks_are_kept_from_running():
    collected = []

    def noted(phase, _):
        collected.append(phase)

    threshold = gc.get_threshold()
    gc.callbacks.append(noted)
    try:
        with saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor):
            node = torch.mul(*inputs()).grad_fn
        gc.set_threshold(1)
        raw = read_saved(node, "_raw_saved_self")
        gc.set_threshold(*threshold)
        gc.collect()
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(noted)
    assert raw.tensors == (HOOKED,)
    assert collected[-2:] == ["start", "stop"]
    assert gc.isenabled()
