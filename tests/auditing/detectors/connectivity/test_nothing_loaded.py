"""States of which nothing fits the model that is given them (GCS413), and those that fit partly."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gradcheck_suite.findings import Severity


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(4, 4)
        self.out = nn.Linear(4, 4)

    def forward(self, x):
        return self.out(torch.relu(self.stem(x)))


class Classifier(nn.Module):
    def __init__(self, classes=3):
        super().__init__()
        self.encoder = Encoder()
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, classes)

    def forward(self, x):
        return self.head(self.norm(self.encoder(x)))


def train(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()


def renamed(model, prefix):
    return {prefix + name: value.clone() for name, value in model.state_dict().items()}


def saved_from_a_wrapper():
    model = Classifier()
    model.load_state_dict(renamed(Classifier(), "module."), strict=False)  # <- here
    train(model)


def loaded_into_a_wrapper():
    model = nn.Sequential(Classifier())
    model.load_state_dict(Classifier().state_dict(), strict=False)  # <- here
    train(model)


def an_encoder_below_other_names():
    model = Classifier()
    model.load_state_dict(state_dict=renamed(Encoder(), "backbone."), strict=False)  # <- here
    train(model)


def the_checkpoint_instead_of_its_state():
    model = Classifier()
    checkpoint = {"state_dict": Classifier().state_dict(), "epoch": 3}
    model.load_state_dict(checkpoint, strict=False)  # <- here
    train(model)


@pytest.mark.parametrize(
    ("loop", "words"),
    [
        (saved_from_a_wrapper, "expected them without `module.`"),
        (loaded_into_a_wrapper, "expected them to begin with `0.`"),
        (an_encoder_below_other_names, "expected `encoder.` where they have `backbone.`"),
        (the_checkpoint_instead_of_its_state, "none of the 10 entries of Classifier"),
    ],
)
def test_nothing_fits(audited, only, line_of, loop, words):
    finding = only(audited(loop), "GCS413")
    assert finding.severity is Severity.WARNING
    assert finding.location.line == line_of(loop)
    assert words in finding.message
    assert finding.evidence["loaded"] == 0


def test_hint_takes_the_prefix_away(audited, only):
    finding = only(audited(saved_from_a_wrapper), "GCS413")
    assert finding.hint == (
        '{name.removeprefix("module."): value for name, value in state.items()}'
    )


def another_name_is_tried_next():
    model = Classifier()
    state = renamed(Classifier(), "module.")
    if model.load_state_dict(state, strict=False).missing_keys:
        model.load_state_dict({name.removeprefix("module."): state[name] for name in state})
    train(model)


def nothing_to_come_back_to():
    model = Classifier()
    model.load_state_dict({}, strict=False)
    train(model)


@pytest.mark.parametrize("loop", [another_name_is_tried_next, nothing_to_come_back_to])
def test_a_note_where_it_may_be_meant(audited, only, loop):
    assert only(audited(loop), "GCS413").severity is Severity.NOTE


def a_new_head():
    model = Classifier()
    state = Classifier(5).state_dict()
    model.load_state_dict(
        {n.replace("head.", "fc."): value for n, value in state.items()}, strict=False
    )
    train(model)


def an_encoder_out_of_a_larger_model():
    whole = Classifier().state_dict()
    model = Encoder()
    model.load_state_dict({n.removeprefix("encoder."): v for n, v in whole.items()}, strict=False)
    train(model)


def an_adapter_alone():
    model = Classifier()
    model.load_state_dict({"head.weight": torch.zeros(3, 4)}, strict=False)
    train(model)


def all_of_it():
    model = Classifier()
    model.load_state_dict(Classifier().state_dict())
    train(model)


def layers_without_parameters():
    model = nn.Sequential(nn.Tanh())
    model.load_state_dict({"scale": torch.zeros(2)}, strict=False)
    train(Classifier())


@pytest.mark.parametrize(
    "loop",
    [
        a_new_head,
        an_encoder_out_of_a_larger_model,
        an_adapter_alone,
        all_of_it,
        layers_without_parameters,
    ],
)
def test_what_fits_is_loaded(audited, loop):
    assert not audited(loop).findings
