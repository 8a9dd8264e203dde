"""Rows of padding that an initialization has overwritten (GCS406), and those that stay out."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from gradcheck_suite.findings import Severity

PAD = 0


class Bag(nn.Module):
    """Sums up words, or takes the mean of those that are no padding."""

    def __init__(self, pooling="sum", **options):
        super().__init__()
        self.words = nn.Embedding(12, 6, **{"padding_idx": PAD, **options})
        self.head = nn.Linear(6, 1)
        self.pooling = pooling

    def forward(self, ids):
        words = self.words(ids)
        is_word = (ids != PAD).unsqueeze(-1)
        if self.pooling == "mean of words":
            return self.head((words * is_word).sum(1) / is_word.sum(1).clamp(min=1))
        if self.pooling == "attention":
            scores = words.sum(-1).masked_fill(ids == PAD, -1e4).softmax(-1)
            return self.head((scores.unsqueeze(-1) * words).sum(1))
        return self.head(words.sum(1))


def train(model, lengths=(2, 3, 5, 7)):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(4):
        ids = [functional.pad(torch.randint(1, 12, (n,)), (0, max(lengths) - n)) for n in lengths]
        optimizer.zero_grad()
        model(torch.stack(ids)).square().mean().backward()
        optimizer.step()


def initialize_words(module):
    if isinstance(module, nn.Embedding):
        module.weight.data.normal_(0, 0.1)  # <- here


def test_the_row_of_padding_is_overwritten(audited, only, line_of):
    def loop():
        model = Bag()
        model.apply(initialize_words)
        train(model)

    finding = only(audited(loop), "GCS406")
    assert finding.severity is Severity.WARNING
    assert finding.location.line == line_of(initialize_words)
    assert finding.message == (
        "normal_() set all of `model.words.weight` here, the row of `padding_idx` (0) too: it has "
        "no gradient, so that it keeps what was set for ever, and padding has a part in the loss; "
        "expected a row of zeros"
    )
    assert finding.evidence == {
        "names": ["model.words.weight"],
        "row": 0,
        "operation": "normal_",
    }


def test_an_initialization_in_two_parts(audited, only):
    def loop():
        model = Bag()
        with torch.no_grad():
            nn.init.uniform_(model.words.weight)
            model.words.weight.mul_(0.1)
        train(model)

    assert "uniform_() set all of" in only(audited(loop), "GCS406").message


def test_the_row_is_set_to_zeros_again(audited):
    def loop():
        model = Bag()
        model.apply(initialize_words)
        with torch.no_grad():
            model.words.weight[PAD].fill_(0)
        train(model)

    assert audited(loop).findings == ()


def test_nothing_overwrites_it_or_it_is_set_on_purpose(audited):
    def loop():
        train(Bag())
        chosen = Bag()
        chosen.apply(initialize_words)
        with torch.no_grad():
            chosen.words.weight[PAD] = 0.5
        train(chosen)

    assert audited(loop).findings == ()


def test_padding_that_a_mask_leaves_out(audited):
    def loop():
        for pooling in ("mean of words", "attention"):
            model = Bag(pooling)
            model.apply(initialize_words)
            train(model)

    assert audited(loop).findings == ()


def test_batches_without_padding(audited):
    def loop():
        model = Bag()
        model.apply(initialize_words)
        train(model, lengths=(4, 4, 4))

    assert audited(loop).findings == ()


def test_an_embedding_without_padding(audited):
    def loop():
        model = Bag(padding_idx=None)
        model.apply(initialize_words)
        train(model)

    assert audited(loop).findings == ()


def test_a_weight_that_is_loaded(audited):
    state = Bag(padding_idx=None).state_dict()

    def loop():
        model = Bag()
        model.apply(initialize_words)
        model.load_state_dict(state)
        train(model)
        vectors = nn.Embedding.from_pretrained(torch.randn(12, 6), freeze=False, padding_idx=PAD)
        model.words = vectors
        train(model)

    assert audited(loop).findings == ()
