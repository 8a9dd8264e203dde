"""GCS203: two backwards from one loss before one step, and those that are rightly two."""

from __future__ import annotations

import pytest
import torch
from torch import nn

STEPS = 5


def trained(backwards, after=None, steps=STEPS, kind=torch.optim.SGD):
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = kind(net.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        backwards(net, torch.randn(6, 4))
        if after is not None:
            after(net)
        optimizer.step()


def twice_in_one_function():
    def backwards(net, x):
        loss = net(x).square().mean()
        loss.backward(retain_graph=True)  # <- first
        loss.backward()  # <- here

    trained(backwards)


def once_in_a_helper_and_once_in_the_loop():
    def training_step(net, x):
        loss = net(x).square().mean()
        loss.backward(retain_graph=True)  # <- first
        return loss

    trained(lambda net, x: training_step(net, x).backward(), kind=torch.optim.Adam)  # <- here


def twice_and_clipped():
    def backwards(net, x):
        loss = net(x).square().mean()
        loss.backward(retain_graph=True)  # <- first
        loss.backward()  # <- here

    trained(backwards, lambda net: nn.utils.clip_grad_norm_(net.parameters(), 1.0))


BUGS = [twice_in_one_function, once_in_a_helper_and_once_in_the_loop, twice_and_clipped]


@pytest.mark.parametrize("loop", BUGS, ids=lambda loop: loop.__name__)
def test_a_gradient_that_is_counted_twice_is_told(audited, only, line_of, loop):
    finding = only(audited(loop), "GCS203")
    assert finding.location.line == line_of(loop)
    assert [each.location.line for each in finding.related] == [line_of(loop, "first")]
    assert finding.severity.value == "warning"
    assert finding.evidence["count"] == STEPS


def test_the_words(audited, only):
    finding = only(audited(twice_in_one_function), "GCS203")
    assert finding.message == (
        "backward() went from one loss through its graph twice, and SGD.step() used gradients "
        "that were exactly twice those of the loss, 5 times; expected one backward() from each loss"
    )
    assert finding.hint == (
        "leave out one of the two backward() calls, and retain_graph=True with it"
    )


def test_one_step_is_not_enough(audited):
    def backwards(net, x):
        loss = net(x).square().mean()
        loss.backward(retain_graph=True)
        loss.backward()

    assert audited(lambda: trained(backwards, steps=1)).findings == ()


def two_losses(net, x):
    out = net(x)
    out.square().mean().backward(retain_graph=True)
    out.abs().mean().backward()


def a_loss_and_a_sum_that_has_it(net, x):
    loss = net(x).square().mean()
    loss.backward(retain_graph=True)
    (loss + 0.1 * net[0].weight.square().sum()).backward()


def parts_of_the_parameters(net, x):
    loss = net(x).square().mean()
    loss.backward(inputs=list(net[0].parameters()), retain_graph=True)
    loss.backward(inputs=list(net[2].parameters()))


def other_weights(net, x):
    loss = net(x).square().mean()
    loss.backward(torch.tensor(0.3), retain_graph=True)
    loss.backward(torch.tensor(0.7))


def put_away_in_between(net, x):
    loss = net(x).square().mean()
    loss.backward(retain_graph=True)
    first = [p.grad for p in net.parameters()]
    net.zero_grad()
    loss.backward()
    assert all(map(torch.equal, first, (p.grad for p in net.parameters())))


def written_to_in_between(net, x):
    loss = net(x).square().mean()
    loss.backward(retain_graph=True)
    for p in net.parameters():
        p.grad.neg_()
    loss.backward()


def returned_first(net, x):
    loss = net(x).square().mean()
    torch.autograd.grad(loss, list(net.parameters()), retain_graph=True)
    loss.backward()


def rows(net, x):
    out = net(x)
    for row in out[:, 0]:
        row.backward(retain_graph=True)


def another_in_between(net, x):
    out = net(x)
    loss = out.square().mean()
    loss.backward(retain_graph=True)
    out.abs().mean().backward(retain_graph=True)
    out.square().sum().backward()


CLEAN = [
    two_losses,
    a_loss_and_a_sum_that_has_it,
    parts_of_the_parameters,
    other_weights,
    put_away_in_between,
    written_to_in_between,
    returned_first,
    rows,
    another_in_between,
]


@pytest.mark.parametrize("backwards", CLEAN, ids=lambda each: each.__name__)
def test_nothing_is_said_of_two_that_differ(audited, backwards):
    assert audited(lambda: trained(backwards)).findings == ()


def test_nothing_is_said_of_a_mean_of_both(audited):
    def backwards(net, x):
        loss = net(x).square().mean()
        loss.backward(retain_graph=True)
        loss.backward()

    def halve(net):
        for p in net.parameters():
            p.grad.div_(2)

    assert audited(lambda: trained(backwards, halve)).findings == ()


def test_it_sleeps_where_no_graph_is_kept(audited):
    session = audited(lambda: trained(lambda net, x: net(x).square().mean().backward(), steps=12))
    (detector,) = [
        each for each in session._detectors if type(each).__name__ == "RetainGraphDetector"
    ]
    assert not detector._any_kept
    assert not detector.is_following()
