"""Rows whose gradients are set to zero and which a step moves (GCS409), and those that stay."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gradcheck_suite.findings import Severity

OLD, NEW = 12, 4


def batches(steps=12):
    for _ in range(steps):
        yield torch.randint(0, OLD + NEW, (40,)), torch.randn(40, 3)


def train(embedding, head, optimizer, after_backward=lambda: None, after_step=lambda: None):
    for ids, y in batches():
        optimizer.zero_grad()
        (head(embedding(ids)) - y).pow(2).mean().backward()
        after_backward()
        optimizer.step()
        after_step()


def parts():
    embedding, head = nn.Embedding(OLD + NEW, 5), nn.Linear(5, 3)
    return embedding, head, [embedding.weight, *head.parameters()]


def hooked(optimizer=torch.optim.AdamW, **options):
    embedding, head, parameters = parts()
    mask = torch.ones(OLD + NEW, 1)
    mask[:OLD] = 0
    embedding.weight.register_hook(lambda grad: grad * mask)  # <- hook
    train(embedding, head, optimizer(parameters, lr=0.01, **options))


def assigned(optimizer=torch.optim.AdamW, **options):
    embedding, head, parameters = parts()

    def clear():
        embedding.weight.grad[:OLD] = 0  # <- assigned

    train(embedding, head, optimizer(parameters, lr=0.01, **options), clear)


def of_a_bias():
    layer, head = nn.Linear(5, OLD + NEW), nn.Linear(OLD + NEW, 3)

    def keep(grad):  # <- bias
        grad = grad.clone()
        grad[:OLD] = 0
        return grad

    layer.bias.register_hook(keep)
    optimizer = torch.optim.SGD([layer.bias], lr=0.1, weight_decay=0.1)
    for _, y in batches():
        optimizer.zero_grad()
        (head(layer(torch.randn(40, 5))) - y).pow(2).mean().backward()
        optimizer.step()


@pytest.mark.parametrize(
    ("loop", "marker"), [(hooked, "hook"), (assigned, "assigned"), (of_a_bias, "bias")]
)
def test_rows_that_decay_are_told_where_their_gradients_are_set_to_zero(
    audited, line_of, loop, marker
):
    (finding,) = [each for each in audited(loop).findings if each.code == "GCS409"]
    assert finding.severity is Severity.WARNING
    assert finding.location.line == line_of(loop, marker)
    assert f"{OLD} rows of" in finding.message
    assert "weight decay" in finding.message
    assert finding.evidence["rows"] == OLD


def without_decay():
    hooked(weight_decay=0.0)


def plain_sgd():
    assigned(torch.optim.SGD)


def copied_back():
    """What is put back between two steps was moved by each of them, and is no worse for it."""
    embedding, head, _ = parts()
    optimizer = torch.optim.SGD([embedding.weight], lr=0.01)
    old = embedding.weight.detach()[:OLD].clone()

    def put_back():
        with torch.no_grad():
            embedding.weight[:OLD] = old

    train(embedding, head, optimizer, after_step=put_back)


def clamped_gradients_of_words_that_never_come():
    embedding, head, parameters = parts()
    embedding.weight.register_hook(lambda grad: grad.clamp(-1, 1))
    optimizer = torch.optim.AdamW(parameters, lr=0.01)
    for ids, y in batches():
        optimizer.zero_grad()
        (head(embedding(ids % OLD)) - y).pow(2).mean().backward()
        for parameter in parameters:
            parameter.grad.clamp_(-1, 1)
        optimizer.step()


def scaled_by_a_hook():
    embedding, head, parameters = parts()
    embedding.weight.register_hook(lambda grad: grad * 0.5)
    optimizer = torch.optim.AdamW(parameters, lr=0.01)
    for ids, y in batches():
        optimizer.zero_grad()
        (head(embedding(ids % OLD)) - y).pow(2).mean().backward()
        optimizer.step()


@pytest.mark.parametrize(
    "loop",
    [
        *(without_decay, plain_sgd, copied_back, scaled_by_a_hook),
        clamped_gradients_of_words_that_never_come,
    ],
)
def test_rows_that_stay_or_have_no_gradient_by_chance_are_no_finding(audited, loop):
    assert "GCS409" not in [each.code for each in audited(loop).findings]


class PreparesItsSlope(torch.autograd.Function):
    @staticmethod
    def forward(ctx, table):
        slope = torch.ones_like(table)
        slope[:8] = 0
        ctx.slopes = [slope]
        return table[8:].sum()

    @staticmethod
    def backward(ctx, grad_output):
        return ctx.slopes.pop().mul_(grad_output)


def test_what_was_written_before_the_backward_was_no_gradient(audited):
    def loop():
        table = nn.Embedding(64, 16)
        optimizer = torch.optim.Adam(table.parameters(), lr=0.01, weight_decay=0.1)
        for _ in range(8):
            optimizer.zero_grad()
            PreparesItsSlope.apply(table.weight).backward()
            optimizer.step()

    assert "GCS409" not in {each.code for each in audited(loop).findings}
