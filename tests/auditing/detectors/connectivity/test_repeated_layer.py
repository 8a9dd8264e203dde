"""Lists that have one layer several times, and layers that are shared otherwise (GCS412)."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gradcheck_suite.findings import Severity


def train(model, x=None):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(3, 4) if x is None else x).square().mean().backward()
        optimizer.step()


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.ReLU(), nn.Linear(4, 4))

    def forward(self, x):
        return x + self.body(x)


def blocks_of_a_multiplied_list():
    train(nn.Sequential(*[Residual()] * 5))  # <- here


class Message(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Linear(4, 4)

    def forward(self, x):
        return torch.tanh(self.weight(x))


class Graph(nn.Module):
    def __init__(self, depth=3):
        super().__init__()
        self.layers = nn.ModuleList(depth * [Message()])  # <- here

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


class Expert(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(4, 4)

    def forward(self, x):
        return self.up(x)


class Mixture(nn.Module):
    def __init__(self):
        super().__init__()
        experts = [Expert()] * 2  # <- here
        self.experts = nn.ModuleDict(zip("ab", experts, strict=True))

    def forward(self, x):
        return self.experts["a"](x) - 2 * self.experts["b"](x)


@pytest.mark.parametrize(
    ("loop", "place", "container"),
    [
        (blocks_of_a_multiplied_list, blocks_of_a_multiplied_list, "model"),
        (lambda: train(Graph()), Graph.__init__, "model.layers"),
        (lambda: train(Mixture()), Mixture.__init__, "model.experts"),
    ],
)
@pytest.mark.slow
def test_a_multiplied_list_is_a_warning_at_its_line(audited, line_of, loop, place, container):
    (finding,) = audited(loop).findings
    assert (finding.code, finding.severity) == ("GCS412", Severity.WARNING)
    assert finding.location.line == line_of(place)
    assert finding.evidence["container"] == container


@pytest.mark.slow
def test_words(audited, only):
    finding = only(audited(blocks_of_a_multiplied_list), "GCS412")
    assert "5 of 5 entries of the Sequential `model` are one and the same Residual" in (
        finding.message
    )


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.stages = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        head = nn.Linear(4, 1)
        self.heads = nn.ModuleList([head for _ in self.stages])

    def forward(self, x):
        out = 0
        for stage, head in zip(self.stages, self.heads, strict=True):
            x = torch.tanh(stage(x))
            out = out + head(x)
        return out


@pytest.mark.slow
def test_a_head_that_all_stages_share_is_a_note(audited, only):
    finding = only(audited(lambda: train(Detector())), "GCS412")
    assert finding.severity is Severity.NOTE


def one_activation_everywhere():
    relu = nn.ReLU()
    train(nn.Sequential(nn.Linear(4, 4), relu, nn.Linear(4, 4), relu))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.Linear(4, 4)

    def forward(self, x):
        for _ in range(3):
            x = torch.tanh(self.cell(x))
        return x


@pytest.mark.parametrize("loop", [one_activation_everywhere, lambda: train(Recurrent())])
def test_what_is_shared_on_purpose_is_fine(audited, loop):
    assert audited(loop).findings == ()


class Coder(nn.Module):
    """An encoder, and a decoder that may be built from the layers of the encoder."""

    def __init__(self, *, takes_norms):
        super().__init__()
        norms = [nn.BatchNorm2d(4), nn.BatchNorm2d(4)]
        self.encoder = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), norms[0], nn.ReLU())
        self.pool = nn.MaxPool2d(2)
        own = norms[0] if takes_norms else norms[1]
        self.decoder = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), own, nn.ReLU())

    def forward(self, x):
        return self.decoder(self.pool(self.encoder(x)))


class Pyramid(nn.Module):
    """A head that all levels share, and that has another name as well."""

    def __init__(self):
        super().__init__()
        self.head = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4))
        self.parts = nn.ModuleList(self.head)

    def forward(self, x):
        return self.head(x).mean() + self.head(x[..., ::2, ::2]).mean()


class Features(nn.Module):
    """A body whose layers are called through a second container as well."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
        self.features = nn.Sequential(*list(self.body)[:-1])

    def forward(self, x):
        return self.body(x).mean() + self.features(x).mean()


def decoder_of_the_encoders_layers():
    train(Coder(takes_norms=True), torch.randn(3, 1, 8, 8))


def test_a_norm_at_two_places(audited, only):
    finding = only(audited(decoder_of_the_encoders_layers), "GCS412")
    assert finding.severity is Severity.WARNING
    assert "one BatchNorm2d of `model` stands in `model.encoder` and in `model.decoder`" in (
        finding.message
    )
    assert "one call of the model gave it maps of 8x8 and of 4x4: its running" in finding.message
    assert finding.evidence == {"places": ["model.encoder", "model.decoder"], "norms": 1}


@pytest.mark.parametrize("make", [lambda: Coder(takes_norms=False), Pyramid, Features])
def test_norms_that_stand_at_one_place(audited, make):
    session = audited(lambda: train(make(), torch.randn(3, 1, 8, 8)))
    assert not session.report.at_least(Severity.WARNING)
    assert not [each for each in session.findings if each.code == "GCS412"]
