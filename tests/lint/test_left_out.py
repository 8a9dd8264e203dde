"""GCS307: new layers that are trained through and no optimizer gets, and what looks like it."""

from __future__ import annotations

import pytest

from gradcheck_lint.engine import lint_source

_FUNCTION = """\
import torch
import torch.nn.functional as F
from itertools import chain
from torch import nn

class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.actor = nn.Linear(3, 3)
        self.critic = nn.Linear(3, 3)

    def half(self):
        return self.critic.parameters()

class Frozen(nn.Module):
    def __init__(self):
        super().__init__()
        self.actor = nn.Linear(3, 3)
        self.critic = nn.Linear(3, 3)
        self.critic.requires_grad_(False)

class Wrapper(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = nn.DataParallel(inner)

    def forward(self, x):
        return self.inner(x)

def train(loader, device, load, make):
    encoder = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    decoder = nn.Linear(3, 3)
    decoder = decoder.to(device)
{made}
    for x in loader:
        opt.zero_grad()
        loss = F.mse_loss({goes}, x)
        loss.backward()
        opt.step()
"""
_ALL = "decoder(encoder(x))"
_SGD = "opt = torch.optim.SGD({}, lr=0.1)"
_LEFT_OUT = {
    "a name": (_SGD.format("encoder.parameters()"), _ALL),
    "of two optimizers' names": (
        "unused = torch.optim.SGD(encoder.parameters(), lr=0.1)\n"
        + _SGD.format("encoder.parameters()"),
        _ALL,
    ),
    "of a list": (
        "ps = [p for p in encoder.parameters()]\n" + _SGD.format("filter(lambda p: p.dim(), ps)"),
        _ALL,
    ),
    "an attribute": (
        "pair = Pair()\n" + _SGD.format("pair.actor.parameters()"),
        "pair.critic(pair.actor(x))",
    ),
    "an attribute, by groups": (
        "pair = Pair().to(device)\n" + _SGD.format('[{"params": pair.actor.parameters()}]'),
        "pair.critic(pair.actor(x))",
    ),
}
_GIVEN = {
    "both": (_SGD.format("[*encoder.parameters(), *decoder.parameters()]"), _ALL),
    "chained": (_SGD.format("chain(encoder.parameters(), decoder.parameters())"), _ALL),
    "by a loop": (_SGD.format("[p for m in (encoder, decoder) for p in m.parameters()]"), _ALL),
    "as one model": (
        "model = nn.Sequential(encoder, decoder)\n" + _SGD.format("model.parameters()"),
        _ALL,
    ),
    "by a function": ("opt = make(encoder, decoder)", _ALL),
    "added later": (
        _SGD.format("encoder.parameters()")
        + '\nopt.add_param_group({"params": decoder.parameters()})',
        _ALL,
    ),
    "frozen": ("decoder.requires_grad_(False)\n" + _SGD.format("encoder.parameters()"), _ALL),
    "frozen by a loop": (
        "for p in decoder.parameters():\n    p.requires_grad = False\n"
        + _SGD.format("encoder.parameters()"),
        _ALL,
    ),
    "loaded": (
        "decoder.load_state_dict(load())\n" + _SGD.format("encoder.parameters()"),
        _ALL,
    ),
    "not differentiated": (_SGD.format("encoder.parameters()"), "encoder(x) - decoder(x).detach()"),
    "without weights": (
        "act = nn.ReLU()\n" + _SGD.format("[*encoder.parameters(), *decoder.parameters()]"),
        "act(decoder(encoder(x)))",
    ),
    "an object whole": (
        "pair = Pair()\n" + _SGD.format("pair.parameters()"),
        "pair.critic(pair.actor(x))",
    ),
    "an attribute by a method": (
        "pair = Pair()\n" + _SGD.format("[*pair.actor.parameters(), *pair.half()]"),
        "pair.critic(pair.actor(x))",
    ),
    "an attribute that its class freezes": (
        "pair = Frozen()\n" + _SGD.format("pair.actor.parameters()"),
        "pair.critic(pair.actor(x))",
    ),
    "of what nobody knows": (_SGD.format("parameters"), _ALL),
    "of another file": (
        "pair = load()\n" + _SGD.format("pair.actor.parameters()"),
        "pair.critic(pair.actor(x))",
    ),
}


_WRAPPERS = [
    "DDP(encoder, device_ids=[device])",
    "nn.DataParallel(encoder)",
    "nn.parallel.DistributedDataParallel(pair.actor)",
    "FSDP(encoder)",
    "torch.compile(encoder)",
    "load.prepare(encoder)",
    "make(encoder)",
    "Wrapper(encoder)",
    "nn.Sequential(encoder, nn.ReLU())",
]


@pytest.mark.parametrize("wrapper", _WRAPPERS)
def test_wrapper_has_the_parameters_of_what_it_wraps(wrapper):
    head = (
        "from torch.nn.parallel import DistributedDataParallel as DDP\n"
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
    )
    made = (
        f"pair = Pair()\n{_SGD.format('[*encoder.parameters(), *pair.actor.parameters()]')}\n"
        f"wrapped = {wrapper}"
    )
    assert lint_source((head + _source(made, "wrapped(x)")).encode(), "train.py") == ()


@pytest.mark.parametrize(
    "layer",
    [
        "nn.Linear(3, 3)",
        "nn.DataParallel(nn.Linear(3, 3))",
        "nn.Sequential(encoder, nn.Linear(3, 3))",
        "Pair()",
    ],
)
def test_new_layer_beside_a_wrapper_is_left_out(layer):
    made = (
        f"{_SGD.format('encoder.parameters()')}\nwrapped = nn.DataParallel(encoder)\nhead = {layer}"
    )
    (found,) = lint_source(_source(made, "head(wrapped(x))").encode(), "train.py")
    assert found.code == "GCS307"
    assert "`head`" in found.message


def _source(made, goes):
    lines = "\n".join(f"    {line}" for line in made.splitlines())
    return _FUNCTION.format(made=lines, goes=goes)


@pytest.mark.parametrize(("made", "goes"), _LEFT_OUT.values(), ids=_LEFT_OUT)
def test_layers_that_no_optimizer_gets(made, goes):
    source = _source(made, goes)
    (found,) = lint_source(source.encode(), "train.py")
    line = source.splitlines()[found.location.line - 1]
    assert (found.code, found.severity.value) == ("GCS307", "warning")
    assert line.lstrip().startswith("opt = ")
    assert ("`decoder`" if goes == _ALL else "`pair.critic`") in found.message


@pytest.mark.parametrize(("made", "goes"), _GIVEN.values(), ids=_GIVEN)
def test_layers_that_are_given_frozen_or_not_differentiated(made, goes):
    assert lint_source(_source(made, goes).encode(), "train.py") == ()
