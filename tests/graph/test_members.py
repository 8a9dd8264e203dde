"""Parameters and buffers go by the names that torch gives them."""

from __future__ import annotations

import pytest
from torch import nn

from gradcheck_suite.graph._leaves import members_of


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
    found = [(kind, name, id(tensor)) for kind, name, tensor in members_of([(prefix, module)])]
    assert found == expected
