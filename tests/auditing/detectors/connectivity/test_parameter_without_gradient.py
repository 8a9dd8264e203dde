"""Parameters that ought to train and never do, though the loss has its graph."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as everybody writes it
from torch.utils.checkpoint import checkpoint

from tests.auditing.loops.connected import Checkpointed, Unused, data, fit, make_net, sgd, update


def layer_never_called():
    net = Unused()
    optimizer = sgd(net)
    for x, y in data():
        update(optimizer, F.cross_entropy(net(x), y))


class Dropped(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(4, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        gate = self.gate(x).sigmoid()  # <- here
        del gate
        return self.head(x)


def output_not_used():
    net = Dropped()
    optimizer = sgd(net)
    for x, y in data():
        update(optimizer, F.cross_entropy(net(x), y))


class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))
        self.head = nn.Linear(4, 3)

    def forward(self, x):  # <- here
        return self.head(x)


def parameter_not_used():
    net = Scale()
    optimizer = sgd(net)
    for x, y in data():
        update(optimizer, F.cross_entropy(net(x), y))


class ShortLoop(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x):
        for layer in self.layers[:-1]:
            x = layer(x).relu()
        return x


def last_layer_left_out():
    net = ShortLoop()
    optimizer = sgd(net)
    for x, y in data():
        update(optimizer, F.cross_entropy(net(x), y))


class InList(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = [nn.Linear(4, 4) for _ in range(2)]  # <- here
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).relu()
        return self.head(x)


class InDict(nn.Module):
    def __init__(self):
        super().__init__()
        self.heads = {"a": nn.Linear(4, 3), "b": nn.Linear(4, 3)}  # <- here
        self.body = nn.Linear(4, 4)

    def forward(self, x):
        hidden = self.body(x)
        return self.heads["a"](hidden) + self.heads["b"](hidden)


class Parameters(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 3)
        self.offsets = []  # <- here
        for _ in range(2):
            self.offsets.append(nn.Parameter(torch.zeros(3)))

    def forward(self, x):
        return self.head(x) + self.offsets[0] + self.offsets[1]


class Nested(nn.Module):
    def __init__(self):
        super().__init__()
        self.grid = [[nn.Linear(4, 4), nn.ReLU()], [nn.Linear(4, 4), nn.ReLU()]]  # <- here
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        for row in self.grid:
            for layer in row:
                x = layer(x)
        return self.head(x)


def only_frozen_parameters():
    frozen, head = nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 3)
    first = torch.optim.SGD(frozen.parameters(), lr=0.01)  # <- here
    second = sgd(head)
    for x, y in data():
        first.zero_grad()
        update(second, F.cross_entropy(head(frozen(x)), y))
        first.step()


def some_frozen_parameters():
    net = make_net()
    net[0].requires_grad_(False)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)  # <- here
    for x, y in data():
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()


def first_block_in_a_reentrant_checkpoint():
    net = Checkpointed(reentrant=True)
    optimizer = sgd(net)
    for x, y in data():
        update(optimizer, F.cross_entropy(net(x), y))


class CheckpointedMethod(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.inner, self.head = nn.Embedding(9, 4), nn.Linear(4, 4), nn.Linear(4, 3)

    def embed(self, x):
        return self.inner(self.table(x))

    def forward(self, x):
        hidden = checkpoint(self.embed, x, use_reentrant=True)  # <- here
        return self.head(hidden)


def first_method_in_a_reentrant_checkpoint():
    net = CheckpointedMethod()
    optimizer = sgd(net)
    for _, y in data():
        update(optimizer, F.cross_entropy(net(torch.randint(9, y.shape)), y))


class NoWeightGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx, grad):
        _, weight = ctx.saved_tensors
        return grad @ weight.t(), None


def function_returns_none():
    body, weight = nn.Linear(4, 4), nn.Parameter(torch.randn(4, 3))
    optimizer = torch.optim.SGD([*body.parameters(), weight], lr=0.1)
    for x, y in data():
        update(optimizer, F.cross_entropy(NoWeightGradient.apply(body(x), weight), y))


SILENT_BUGS = [
    (layer_never_called, "GCS403", Unused),
    (output_not_used, "GCS403", Dropped),
    (parameter_not_used, "GCS403", Scale),
    (last_layer_left_out, "GCS403", None),
    (fit(InList), "GCS404", InList),
    (fit(InDict), "GCS404", InDict),
    (fit(Parameters), "GCS404", Parameters),
    (fit(Nested), "GCS404", Nested),
    (only_frozen_parameters, "GCS406", only_frozen_parameters),
    (some_frozen_parameters, "GCS406", some_frozen_parameters),
    (first_block_in_a_reentrant_checkpoint, "GCS408", Checkpointed),
    (first_method_in_a_reentrant_checkpoint, "GCS408", CheckpointedMethod),
    (function_returns_none, "GCS508", NoWeightGradient),
]


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize(
    ("loop", "code", "place"), SILENT_BUGS, ids=[bug[0].__name__ for bug in SILENT_BUGS]
)
def test_what_never_trains_is_told_with_its_line(audited, line_of, loop, code, place):
    session = audited(loop)
    assert {finding.code for finding in session.findings} == {code}, session.findings
    assert len(session.findings) == 1
    if place is NoWeightGradient:
        assert "NoWeightGradient returns None" in session.findings[0].message
    elif place is not None:
        place, marker = place if isinstance(place, tuple) else (place, "here")
        assert session.findings[0].location.line == line_of(place, marker)


def test_of_very_many_optimizers_the_first_are_looked_at_and_the_others_counted_out(audited):
    def loops():
        kept = []
        for _ in range(20):
            net = Unused()
            optimizer = sgd(net)
            kept.append((net, optimizer))
            for x, y in data():
                update(optimizer, F.cross_entropy(net(x), y))

    session = audited(loops)
    assert {finding.code for finding in session.findings} == {"GCS403"}
    assert len(session.findings) == 16
    (line,) = [line for line in session.report.not_covered if "optimizers beyond" in line]
    assert "beyond the first 16" in line


class Partly(nn.Module):
    def __init__(self):
        super().__init__()
        self.used = nn.Parameter(torch.ones(4))
        self.unused = nn.Parameter(torch.ones(4))

    def forward(self, x):
        return x @ self.used


def searches_of(monkeypatch, audited, loop):
    count = 0
    original = gc.get_objects

    def search(*args, **kwargs):
        nonlocal count
        count += 1
        return original(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(gc, "get_objects", search)
        session = audited(loop)
    return count, sorted(finding.code for finding in session.findings)


@pytest.mark.parametrize(("replaced_in", "codes"), [(None, ["GCS403"]), (4, ["GCS308"])])
def test_the_module_of_an_unused_parameter_is_looked_for_once(
    monkeypatch, audited, replaced_in, codes
):
    def loop():
        net = Partly()
        optimizer = sgd(net)
        for step in range(8):  # after ten, tensors are looked through
            if step == replaced_in:
                net.unused = nn.Parameter(torch.ones(4))
            update(optimizer, net(torch.randn(3, 4)).sum())

    searches, found = searches_of(monkeypatch, audited, loop)
    assert found == codes
    # Where the module has lost it, that is found out by another search.
    assert searches == (1 if replaced_in is None else 2)


class Skips(nn.Sequential):
    def forward(self, x):
        return self[1](x)


def test_a_layer_that_has_a_number_for_a_name_is_told_with_its_kind(audited, only):
    def loop():
        net = Skips(nn.Linear(4, 4), nn.Linear(4, 3))
        optimizer = sgd(net)
        for x, y in data():
            update(optimizer, F.cross_entropy(net(x), y))

    message = only(audited(loop), "GCS403").message
    assert "`net[0].weight`, `net[0].bias` got no gradient" in message
    assert message.endswith("the Linear `net[0]` is never called")


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = make_net()

    def forward(self, x=None):
        return {"logits": self.net(x)}


def compute_loss(model, x, y):
    logits = model(x=x)["logits"]
    logits = logits.detach().requires_grad_()  # <- here
    return F.cross_entropy(logits, y)


def test_the_function_that_is_named_is_the_one_around_the_line(audited, line_of):
    def loop():
        model = Model()
        optimizer = sgd(model)
        for x, y in data():
            update(optimizer, compute_loss(model, x, y))

    (finding,) = [each for each in audited(loop).findings if each.code == "GCS401"]
    assert finding.location.line == line_of(compute_loss)
    assert finding.location.function == "compute_loss"


class NumberOfTemperature(nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.log_tau = make_net(), nn.Parameter(torch.tensor(-1.0))

    def forward(self, x):
        tau = self.log_tau.exp().item()  # <- here
        return self.net(x) / tau


class TemperatureLeftOut(NumberOfTemperature):
    def forward(self, x):
        self.seen = self.log_tau.exp().item()
        return self.net(x)


def trained(make):
    def loop():
        model = make()
        optimizer = sgd(model)
        for x, y in data():
            update(optimizer, F.cross_entropy(model(x), y))

    return loop


def test_a_number_made_of_a_parameter_is_what_cuts_it_off(audited, line_of):
    (finding,) = audited(trained(NumberOfTemperature)).findings
    assert finding.code == "GCS401"
    assert finding.location.line == line_of(NumberOfTemperature)
    assert "cut by `.item()`" in finding.message


def test_a_number_that_is_only_kept_cuts_nothing_off(audited):
    (finding,) = audited(trained(TemperatureLeftOut)).findings
    assert finding.code == "GCS403"
    assert "item()" not in finding.message
