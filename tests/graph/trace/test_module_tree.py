"""Parameters and buffers go by the names that torch gives them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import gradcheck_suite as gs
from gradcheck_suite.graph.trace.module_tree import members_of, modules_within


def tied():
    layer = nn.Linear(2, 2)
    return nn.Sequential(layer, nn.BatchNorm1d(2), layer, nn.Linear(2, 2, bias=False))


def nested():
    return nn.ModuleDict({"a": tied(), "b": nn.ModuleList([nn.PReLU(), tied()])})


def bare():
    module = nn.Module()
    module.register_parameter("empty", None)
    module.register_buffer("none", None)
    module.scale = nn.Parameter(nn.PReLU().weight.detach())
    return module


class Renaming(nn.Sequential):
    def named_parameters(self, *args, **kwargs):
        for name, parameter in super().named_parameters(*args, **kwargs):
            yield name.removeprefix("0."), parameter


class Hiding(nn.Sequential):
    def named_buffers(self, *_args, **_kwargs):
        return iter(())


class Extra(nn.Sequential):
    def named_modules(self, memo=None, prefix="", remove_duplicate=True):
        for path, module in super().named_modules(memo, prefix, remove_duplicate):
            yield path.replace("0", "first"), module


class Looped(nn.Module):
    """Holds itself, by way of a module within it."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.inner = nn.Sequential(nn.Linear(2, 2))
        self.inner.outer = self

    def forward(self, x):
        return self.inner[0](self.layer(x))


@pytest.mark.parametrize("make", [tied, nested, bare, lambda: nn.Sequential(Extra(*tied()))])
@pytest.mark.parametrize("prefix", ["", "model"])
def test_modules_have_torchs_names(make, prefix):
    module = make()
    expected = module.named_modules(prefix=prefix, remove_duplicate=False)
    found = modules_within(module, prefix)
    assert [(path, id(each)) for path, each in found] == [(path, id(e)) for path, e in expected]


def test_a_module_that_lies_within_itself_is_walked_once():
    module = Looped()
    assert [path for path, _ in modules_within(module)] == ["", "layer", "inner", "inner.0"]
    with gs.record(module) as recording:
        loss = module(torch.ones(1, 2)).sum()
    graph = recording.trace_graph(loss, model=module)
    names = {name for node in graph.nodes if node.leaf for name in node.leaf.names}
    assert names == {"layer.weight", "layer.bias", "inner.0.weight", "inner.0.bias"}


@pytest.mark.parametrize("prefix", ["", "model"])
@pytest.mark.parametrize(
    "make",
    [
        *(tied, nested, bare, nn.LazyBatchNorm1d),
        *(lambda: Renaming(tied()), lambda: Hiding(tied())),
    ],
)
def test_as_torch_names_them(make, prefix):
    module = make()
    expected = [
        ("parameter", name, id(tensor))
        for name, tensor in module.named_parameters(prefix, remove_duplicate=False)
    ] + [
        ("buffer", name, id(tensor))
        for name, tensor in module.named_buffers(prefix, remove_duplicate=False)
    ]
    modules = modules_within(module, prefix)
    found = [(kind, name, id(tensor)) for kind, name, tensor in members_of(module, modules)]
    assert found == expected
