"""Two parameters on one memory, and views and ties that are none of it (GCS312)."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as everybody writes it

from gradcheck_suite.findings import Severity


def train(parameters, loss, kind=torch.optim.Adam, steps=4, **options):
    optimizer = kind(list(parameters), lr=0.01, **options)
    for _ in range(steps):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(6, 3), nn.Linear(3, 6)
        self.decoder.weight = nn.Parameter(self.encoder.weight.t())  # <- here

    def forward(self, x):
        return self.decoder(torch.tanh(self.encoder(x)))


def tied_autoencoder(kind=torch.optim.Adam, **options):
    model = Autoencoder()
    x = torch.randn(4, 6)
    train(model.parameters(), lambda: F.mse_loss(model(x), x), kind, **options)


class LanguageModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.body = nn.Embedding(7, 4), nn.Linear(4, 4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = nn.Parameter(self.tokens.weight.data)  # <- here

    def forward(self, ids):
        return self.head(torch.tanh(self.body(self.tokens(ids))))


def embeddings_tied_by_data():
    model = LanguageModel()
    ids = torch.arange(7)
    train(model.parameters(), lambda: F.cross_entropy(model(ids), ids), torch.optim.AdamW)


def critics_of_one_memory_with_an_optimizer_each():
    first = nn.Linear(4, 1)
    second = nn.Linear(4, 1)
    second.weight.data = first.weight.data
    optimizers = [torch.optim.Adam(m.parameters()) for m in (first, second)]
    for _ in range(4):
        x = torch.randn(5, 4)
        for critic, optimizer in zip((first, second), optimizers, strict=True):
            optimizer.zero_grad(set_to_none=False)
            critic(x).square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()


@pytest.mark.parametrize(
    ("loop", "place", "names"),
    [
        (tied_autoencoder, Autoencoder.__init__, ["encoder.weight", "decoder.weight"]),
        (embeddings_tied_by_data, LanguageModel.__init__, ["tokens.weight", "head.weight"]),
    ],
)
def test_a_second_parameter_on_a_memory_is_told(audited, line_of, loop, place, names):
    (finding,) = audited(loop).findings
    assert (finding.code, finding.severity) == ("GCS312", Severity.WARNING)
    assert finding.location.line == line_of(place)
    assert finding.evidence["names"] == names
    assert f"`{names[0]}` and `{names[1]}` are two parameters on one memory" in finding.message


def test_parameters_of_two_optimizers_are_compared_as_well(audited, only):
    finding = only(audited(critics_of_one_memory_with_an_optimizer_each), "GCS312")
    assert finding.evidence["optimizers"] == ["Adam", "Adam"]


def test_plain_descent_that_adds_up_both_updates_is_a_note(audited, only):
    finding = only(audited(lambda: tied_autoencoder(torch.optim.SGD)), "GCS312")
    assert finding.severity is Severity.NOTE
    assert "SGD without momentum adds up both" in finding.evidence["lowered"][0]


def test_momentum_is_no_such_sum(audited, only):
    finding = only(audited(lambda: tied_autoencoder(torch.optim.SGD, momentum=0.9)), "GCS312")
    assert finding.severity is Severity.WARNING


def tied_by_the_parameter_itself():
    tokens, head = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)
    head.weight = tokens.weight
    model, ids = nn.Sequential(tokens, nn.Tanh(), head), torch.arange(7)
    train(model.parameters(), lambda: F.cross_entropy(model(ids), ids))


def views_of_one_flat_buffer():
    flat = torch.randn(20)
    weight = nn.Parameter(flat[:16].view(4, 4))
    bias = nn.Parameter(flat[16:])
    train([weight, bias], lambda: F.linear(torch.randn(3, 4), weight, bias).square().mean())


def every_other_element():
    flat = torch.randn(8)
    one, other = nn.Parameter(flat[::2]), nn.Parameter(flat[1::2])
    train([one, other], lambda: (one * other).square().mean())


def frozen_alias():
    model = nn.Linear(4, 1)
    anchor = nn.Parameter(model.weight.data, requires_grad=False)
    x = torch.randn(3, 4)
    train(
        [*model.parameters(), anchor],
        lambda: model(x).square().mean() + (model.weight - anchor.clone()).square().sum(),
    )


@pytest.mark.parametrize(
    "loop", [tied_by_the_parameter_itself, views_of_one_flat_buffer, every_other_element]
)
def test_ties_and_views_without_common_elements_are_fine(audited, loop):
    assert audited(loop).findings == ()


def test_an_alias_that_gets_no_gradient_is_not_stepped(audited):
    assert "GCS312" not in {finding.code for finding in audited(frozen_alias).findings}
