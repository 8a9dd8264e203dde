"""GCS312: parameters that two optimizers step on one gradient."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gradcheck_suite.findings import Severity

CODE = "GCS312"
STEPS = 4


def data():
    x = torch.randn(8, 4)
    return x, x.sum(1, keepdim=True)


def loss_of(model):
    x, y = data()
    return (model(x) - y).pow(2).mean()


def network():
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def two_for_the_head():
    model = network()
    base = torch.optim.SGD(model.parameters(), lr=0.01)  # <- here
    head = torch.optim.Adam(model[2].parameters(), lr=0.01)  # <- head
    for _ in range(STEPS):
        base.zero_grad()
        head.zero_grad()
        loss_of(model).backward()
        base.step()  # <- first
        head.step()  # <- again


def test_the_larger_optimizer_is_told_with_both_steps_and_the_other(audited, only, line_of):
    finding = only(audited(two_for_the_head), CODE)
    assert finding.severity is Severity.WARNING
    assert finding.location.line == line_of(two_for_the_head)
    assert "Adam.step() applied gradients of 2 parameters (`2.weight`, `2.bias`)" in finding.message
    assert "SGD.step() had applied already, unchanged, 4 times" in finding.message
    assert [each.location.line for each in finding.related] == [
        line_of(two_for_the_head, marker) for marker in ("first", "again", "head")
    ]


def shared_encoder():
    encoder, actor, critic = nn.Linear(4, 4), nn.Linear(4, 1), nn.Linear(4, 1)
    of_actor = torch.optim.Adam([*encoder.parameters(), *actor.parameters()])
    of_critic = torch.optim.Adam([*encoder.parameters(), *critic.parameters()])  # <- here
    x, _ = data()
    for _ in range(STEPS):
        of_actor.zero_grad()
        of_critic.zero_grad()
        features = encoder(x)
        (actor(features).mean() + critic(features).pow(2).mean()).backward()
        of_actor.step()
        of_critic.step()


def test_an_encoder_that_two_share_is_a_warning(audited, only, line_of):
    finding = only(audited(shared_encoder), CODE)
    assert finding.severity is Severity.WARNING
    assert finding.location.line == line_of(shared_encoder)


def one_group_added_later():
    model = network()
    base = torch.optim.SGD(model[:2].parameters(), lr=0.01)
    head = torch.optim.SGD(model[2].parameters(), lr=0.01)
    for index in range(2 * STEPS):
        if index == STEPS:
            base.add_param_group({"params": list(model[2].parameters())})  # <- here
        base.zero_grad()
        head.zero_grad()
        loss_of(model).backward()
        base.step()
        head.step()


def test_a_group_that_is_added_later_is_found(audited, only, line_of):
    finding = only(audited(one_group_added_later), CODE)
    assert finding.location.line == line_of(one_group_added_later)


def disjoint_players():
    g, d = nn.Linear(4, 4), nn.Linear(4, 1)
    of_g, of_d = (torch.optim.Adam(each.parameters()) for each in (g, d))
    x, y = data()
    for _ in range(STEPS):
        of_d.zero_grad()
        (d(g(x).detach()) - y).pow(2).mean().backward()
        of_d.step()
        of_g.zero_grad()
        d(g(x)).mean().backward()
        of_g.step()


def a_backward_for_each():
    model = network()
    base, head = torch.optim.SGD(model.parameters()), torch.optim.Adam(model[2].parameters())
    for _ in range(STEPS):
        for optimizer in (base, head):
            optimizer.zero_grad(set_to_none=False)
            loss_of(model).backward()
            optimizer.step()


def a_backward_that_adds_in_between():
    model = network()
    base, head = torch.optim.SGD(model.parameters()), torch.optim.Adam(model[2].parameters())
    for _ in range(STEPS):
        base.zero_grad()
        loss_of(model).backward()
        base.step()
        loss_of(model).backward()
        head.step()


def in_turns():
    model = network()
    optimizers = torch.optim.SGD(model.parameters()), torch.optim.Adam(model.parameters())
    for index in range(2 * STEPS):
        optimizer = optimizers[index % 2]
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()


def one_that_never_steps():
    model = network()
    base = torch.optim.SGD(model.parameters())
    spare = torch.optim.Adam(model.parameters())
    for _ in range(STEPS):
        base.zero_grad()
        loss_of(model).backward()
        base.step()
    spare.zero_grad()


def one_cleared_by_hand():
    model = network()
    base, head = torch.optim.SGD(model.parameters()), torch.optim.Adam(model[2].parameters())
    for _ in range(STEPS):
        base.zero_grad()
        loss_of(model).backward()
        base.step()
        for parameter in model[2].parameters():
            parameter.grad.data.zero_()
        head.step()


def closures():
    model = network()
    base, fine = torch.optim.SGD(model.parameters()), torch.optim.LBFGS(model.parameters())

    def closure():
        fine.zero_grad()
        loss = loss_of(model)
        loss.backward()
        return loss

    for _ in range(STEPS):
        base.zero_grad()
        loss_of(model).backward()
        base.step()
        fine.step(closure)


def made_anew():
    model = network()
    for _ in range(STEPS):
        optimizer = torch.optim.SGD(model.parameters())
        for _ in range(2):
            optimizer.zero_grad()
            loss_of(model).backward()
            optimizer.step()


class Wrapper(torch.optim.Optimizer):
    """Steps the optimizer that it wraps, and pulls parameters back a little."""

    def __init__(self, inner):
        self.inner = inner
        super().__init__([p for group in inner.param_groups for p in group["params"]], {})

    def step(self, closure=None):
        self.inner.step(closure)
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.mul_(0.999)


def wrapped():
    model = network()
    optimizer = Wrapper(torch.optim.SGD(model.parameters()))
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()


def once():
    model = network()
    loss_of(model).backward()
    for kind in (torch.optim.SGD, torch.optim.Adam):
        kind(model.parameters()).step()


@pytest.mark.parametrize(
    "loop",
    [
        disjoint_players,
        a_backward_for_each,
        a_backward_that_adds_in_between,
        in_turns,
        one_that_never_steps,
        one_cleared_by_hand,
        closures,
        made_anew,
        wrapped,
        once,
    ],
    ids=lambda loop: loop.__name__,
)
def test_what_takes_each_gradient_once_is_not_told_of(audited, loop):
    assert CODE not in {each.code for each in audited(loop).report.at_least(Severity.WARNING)}
