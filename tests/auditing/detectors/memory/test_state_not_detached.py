"""GCS202 where torch refuses: the graph of an earlier step was freed, or its weights changed."""

from __future__ import annotations

import pytest
import torch
from torch import nn


class Memory(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.out, self.state = nn.GRUCell(4, 8), nn.Linear(8, 1), None

    def forward(self, x):
        if self.state is None:
            self.state = x.new_zeros(len(x), 8)
        self.state = self.cell(x, self.state)  # <- here
        return self.out(self.state)


def train(model, *, retain, steps=4, epoch=100):
    optimizer = torch.optim.RMSprop(model.parameters(), 1e-3)
    for step in range(1, steps + 1):
        loss = model(torch.randn(3, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward(retain_graph=retain)  # <- here
        optimizer.step()
        if step % epoch:
            model.state = model.state.detach()


def attempt(loop, words):
    with pytest.raises(RuntimeError, match=words):
        loop()


def test_a_state_whose_graph_was_freed(audited, only, line_of):
    loop = lambda: train(Memory(), retain=False, epoch=1)  # noqa: E731
    finding = only(audited(lambda: attempt(loop, "a second time")), "GCS202")
    assert finding.location.line == line_of(Memory)
    assert "what this line was given from the step before still has its graph" in finding.message
    (failing,) = finding.related
    assert failing.location.line == line_of(train)
    assert failing.message == "this backward() fails"
    assert finding.hint.startswith("detach the state between steps")


def test_a_state_whose_graph_was_retained_until_the_weights_had_changed(audited, only, line_of):
    loop = lambda: train(Memory(), retain=True, epoch=1)  # noqa: E731
    finding = only(audited(lambda: attempt(loop, "inplace operation")), "GCS202")
    assert finding.location.line == line_of(Memory)
    assert "overwritten by RMSprop.step()" in finding.message
    assert "the graph is that of an earlier step" in finding.message
    assert "overwritten here, after that step" in [place.message for place in finding.related]


def test_a_state_that_is_carried_on_late_in_the_run(audited, only):
    loop = lambda: train(Memory(), retain=False, steps=12, epoch=10)  # noqa: E731
    finding = only(audited(lambda: attempt(loop, "a second time")), "GCS202")
    assert finding.location.function == "train"


def test_a_total_that_each_step_goes_through(audited, only, make_net, batch):
    def loop():
        net, total = make_net(), 0.0
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        for _ in range(3):
            total = total + net(batch()).square().mean()
            optimizer.zero_grad()
            total.backward()
            optimizer.step()

    finding = only(audited(lambda: attempt(loop, "a second time")), "GCS202")
    assert "a total adds up loss.item()" in finding.hint


def test_a_loss_computed_once_for_all_steps(audited, only, make_net, batch):
    def loop():
        net = make_net()
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        loss = net(batch()).square().mean()
        for _ in range(2):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    finding = only(audited(lambda: attempt(loop, "a second time")), "GCS202")
    assert "starts from a loss of an earlier step" in finding.message


def two_losses_over_one_trunk():
    trunk, heads = nn.Linear(4, 4), [nn.Linear(4, 1), nn.Linear(4, 1)]
    features = trunk(torch.randn(3, 4)).exp()
    for head in heads:
        head(features).sum().backward()


def generator_not_detached():
    made, judge = nn.Linear(3, 4), nn.Linear(4, 1)
    optimizer = torch.optim.SGD(judge.parameters(), 0.1)
    fake = made(torch.randn(3, 3)).tanh()
    judge(fake).mean().backward()
    optimizer.step()
    judge(fake).mean().backward()


def one_loss_twice():
    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(12):
        optimizer.zero_grad()
        loss = net(torch.randn(3, 4)).exp().sum()
        loss.backward()
        with pytest.raises(RuntimeError, match="a second time"):
            loss.backward()
        optimizer.step()
    loss = net(torch.randn(3, 4)).exp().sum()
    loss.backward()
    loss.backward()


@pytest.mark.parametrize(
    "loop", [two_losses_over_one_trunk, generator_not_detached, one_loss_twice]
)
def test_a_graph_that_two_losses_share_is_no_state(audited, loop):
    session = audited(lambda: attempt(loop, "a second time"))
    assert {finding.code for finding in session.findings} == {"GCS208"}
    for finding in session.findings:
        assert "after an earlier one has freed it" in finding.message
        assert finding.severity.value == "error"


def test_a_step_between_two_backwards_of_one_turn_is_no_state(audited, only):
    def loop():
        made, judge = nn.Linear(3, 4), nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        optimizer = torch.optim.Adam(judge.parameters())
        score = judge(made(torch.randn(3, 3)))
        score.sigmoid().mean().backward(retain_graph=True)
        optimizer.step()
        (-score).sigmoid().mean().backward()

    only(audited(lambda: attempt(loop, "inplace operation")), "GCS109")


def test_the_writer_is_named_also_if_its_gradients_are_cleared(audited, only):
    def loop():
        one, two = nn.Linear(4, 1), nn.Linear(4, 4)
        optimizer = torch.optim.SGD(two.parameters(), 0.1)
        pending = one(two(two(torch.randn(3, 4)))).sum()
        two(torch.randn(3, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        pending.backward()

    finding = only(audited(lambda: attempt(loop, "inplace operation")), "GCS109")
    assert finding.evidence["writer"] == "SGD.step()"


def test_chunks_of_one_window_whose_state_is_not_detached(audited, only, line_of):
    model = Memory()

    def loop():
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(4):
            (model(torch.randn(3, 4)).square().mean() / 4).backward()
        optimizer.step()

    finding = only(audited(lambda: attempt(loop, "a second time")), "GCS202")
    assert finding.location.line == line_of(Memory)


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph")
def test_gradients_with_a_graph_that_are_added_to(audited, only, make_net, batch):
    def loop():
        net = make_net()
        optimizer = torch.optim.SGD(net.parameters(), 0.01)
        for _ in range(3):
            net(batch()).square().mean().backward(create_graph=True)
            size = sum(each.grad.square().sum() for each in net.parameters())
            torch.autograd.grad(size, list(net.parameters()))
            optimizer.step()

    session = audited(lambda: attempt(loop, "a second time"))
    assert "GCS206" in [finding.code for finding in session.findings]


def test_a_forward_that_stands_before_the_loop(audited, only, line_of):
    emb, head = nn.Embedding(5, 3), nn.Linear(3, 1)
    optimizer = torch.optim.SGD([*emb.parameters(), *head.parameters()], lr=0.1)

    def loop():
        state = {}
        state["early_features"] = emb(torch.arange(5)).tanh()  # <- here
        for _ in range(3):
            optimizer.zero_grad()
            head(state["early_features"]).pow(2).sum().backward()
            optimizer.step()

    finding = only(audited(lambda: attempt(loop, "a second time")), "GCS202")
    assert finding.location.line == line_of(loop)
    assert "`state['early_features']` was computed once" in finding.message
    assert finding.hint.startswith("move its forward into the loop")


def test_a_forward_before_the_loop_that_is_cut_off(audited):
    emb, head = nn.Embedding(5, 3), nn.Linear(3, 1)
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1)

    def loop():
        features = emb(torch.arange(5)).tanh().detach()
        for _ in range(3):
            optimizer.zero_grad()
            head(features).pow(2).sum().backward()
            optimizer.step()

    assert not [each for each in audited(loop).findings if each.severity.value != "note"]
