"""Loops that only look as if something did not train, and what an audit leaves of them."""

from __future__ import annotations

import copy
import io
import random

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as everybody writes it

from gradcheck_suite.findings import Severity
from tests.auditing.loops.connected import Checkpointed, Unused, data, fit, make_net, sgd, update


def straight_through():
    net = nn.Linear(4, 3)
    for x, y in data():
        out = net(x)
        out = out + (out.round() - out).detach()
        update(sgd(net), F.cross_entropy(out, y))


def logged_item():
    net, total = make_net(), 0.0
    optimizer = sgd(net)
    for x, y in data():
        out = net(x)
        loss = F.cross_entropy(out, y)
        total += loss.item()
        assert (out.argmax(1) == y).float().mean() <= 1
        update(optimizer, loss)


def frozen_backbone_under_no_grad():
    body, head = nn.Linear(4, 4), nn.Linear(4, 3)
    optimizer = sgd(head)
    for x, y in data():
        with torch.no_grad():
            hidden = body(x)
        update(optimizer, F.cross_entropy(head(hidden), y))


def teacher():
    student, big = make_net(), make_net()
    optimizer = sgd(student)
    for x, _ in data():
        with torch.no_grad():
            wanted = big(x)
        update(optimizer, F.mse_loss(student(x), wanted))


def target_network():
    online = make_net()
    target = copy.deepcopy(online)
    optimizer = sgd(online)
    for x, y in data():
        with torch.no_grad():
            best = target(x).max(1).values
        update(optimizer, F.mse_loss(online(x).gather(1, y[:, None])[:, 0], best))
        target.load_state_dict(online.state_dict())


def averaged_copy():
    net = make_net()
    average = torch.optim.swa_utils.AveragedModel(net)
    optimizer = sgd(net)
    for x, y in data():
        update(optimizer, F.cross_entropy(net(x), y))
        average.update_parameters(net)


def experts_take_turns():
    experts = nn.ModuleList(nn.Linear(4, 3) for _ in range(8))
    optimizer = sgd(experts)
    for step, (x, y) in enumerate(data()):
        update(optimizer, F.cross_entropy(experts[step % 3](x), y))


def random_depth():
    draw = random.Random(0)
    layers, head = nn.ModuleList(nn.Linear(4, 4) for _ in range(6)), nn.Linear(4, 3)
    optimizer = sgd(layers, head)
    for x, y in data():
        for layer in layers:
            if draw.random() < 0.4:
                x = x + layer(x)  # noqa: PLW2901 - the hidden state
        update(optimizer, F.cross_entropy(head(x), y))


def alternating_optimizers():
    one, other = nn.Linear(4, 3), nn.Linear(4, 3)
    optimizers = [sgd(one), sgd(other)]
    for step, (x, y) in enumerate(data(8)):
        loss = F.cross_entropy((one, other)[step % 2](x), y)
        update(optimizers[step % 2], loss)


def one_optimizer_two_phases():
    one, other = nn.Linear(4, 3), nn.Linear(4, 3)
    optimizer = sgd(one, other)
    for step, (x, y) in enumerate(data(8)):
        update(optimizer, F.cross_entropy((one if step < 4 else other)(x), y))


def thawed_later():
    body, head = nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 3)
    optimizer = sgd(body, head)
    for step, (x, y) in enumerate(data(8)):
        if step == 4:
            body.requires_grad_(True)
        update(optimizer, F.cross_entropy(head(body(x)), y))


def bias_before_a_norm():
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    optimizer = sgd(net)
    for x, y in data():
        update(optimizer, F.cross_entropy(net(x), y))


class ListedToo(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 3)
        self.order = [self.first, self.second]

    def forward(self, x):
        for layer in self.order:
            x = layer(x)
        return x


class HiddenLossNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 3)
        self.perceptual = [nn.Linear(3, 3).eval()]

    def forward(self, x):
        return self.perceptual[0](self.net(x))


class HiddenFrozen(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 3)
        self.helpers = [nn.Linear(3, 3).requires_grad_(False) for _ in range(2)]

    def forward(self, x):
        return self.helpers[1](self.helpers[0](self.net(x)))


class ListOfItsOwnOptimizer(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 4)
        self.heads = [nn.Linear(4, 3), nn.Linear(4, 3)]

    def forward(self, x):
        return self.heads[0](self.net(x)) + self.heads[1](self.net(x))


def list_handed_over_by_hand():
    net = ListOfItsOwnOptimizer()
    optimizer = sgd(net, *net.heads)
    for x, y in data():
        update(optimizer, F.cross_entropy(net(x), y))


def checkpoint_without_reentry():
    net = Checkpointed(reentrant=False)
    optimizer = sgd(net)
    for x, y in data():
        update(optimizer, F.cross_entropy(net(x), y))


def scalar_parameter():
    scale = nn.Parameter(torch.tensor(2.0))
    optimizer = torch.optim.SGD([scale], lr=0.1)
    for _ in data():
        update(optimizer, scale)


def actor_and_critic():
    actor, critic = make_net(), nn.Linear(4, 1)
    first, second = sgd(actor), sgd(critic)
    for x, _ in data():
        with torch.no_grad():
            act = torch.distributions.Categorical(logits=actor(x)).sample()
        value = critic(x)[:, 0]
        advantage = (torch.randn(6) - value).detach()
        update(second, value.pow(2).mean())
        logs = torch.distributions.Categorical(logits=actor(x)).log_prob(act)
        update(first, -(logs * advantage).mean())


def closures():
    net = make_net()
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=2)
    for x, y in data(4):

        def closure(x=x, y=y):
            optimizer.zero_grad()
            loss = F.cross_entropy(net(x), y)
            loss.backward()
            return loss

        optimizer.step(closure)


def gradients_set_by_hand():
    net = make_net()
    optimizer = sgd(net)
    for x, y in data():
        loss = F.cross_entropy(net(x), y)
        parameters = list(net.parameters())
        for parameter, gradient in zip(
            parameters, torch.autograd.grad(loss, parameters), strict=True
        ):
            parameter.grad = gradient
        optimizer.step()


def evolution_without_backward():
    net = make_net()
    optimizer = sgd(net)
    for _ in data():
        for parameter in net.parameters():
            parameter.grad = torch.randn_like(parameter)
        optimizer.step()


def attention():
    attend, head = nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(4, 3)
    optimizer = sgd(attend, head)
    for x, y in data():
        hidden, _ = attend(x[:, None], x[:, None], x[:, None])
        update(optimizer, F.cross_entropy(head(hidden[:, 0]), y))


CLEAN = [
    straight_through,
    logged_item,
    frozen_backbone_under_no_grad,
    teacher,
    target_network,
    averaged_copy,
    experts_take_turns,
    random_depth,
    alternating_optimizers,
    one_optimizer_two_phases,
    thawed_later,
    bias_before_a_norm,
    fit(ListedToo),
    fit(HiddenLossNetwork),
    fit(HiddenFrozen),
    list_handed_over_by_hand,
    checkpoint_without_reentry,
    scalar_parameter,
    actor_and_critic,
    closures,
    gradients_set_by_hand,
    evolution_without_backward,
    attention,
]


# LBFGS of torch 2.8 converts the loss itself.
@pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad=True to a scalar")
@pytest.mark.parametrize("loop", CLEAN, ids=lambda loop: loop.__name__)
def test_nothing_is_said_of_loops_that_train_what_they_own(audited, loop):
    assert not audited(loop).report.at_least(Severity.WARNING)


def test_nothing_is_left_on_modules_that_a_copy_or_a_file_would_keep(audited):
    net = Unused()
    optimizer = sgd(net)
    call = nn.Module.__call__

    def loop():
        for x, y in data():
            update(optimizer, F.cross_entropy(net(x), y))
            copy.deepcopy(net)
            file = io.BytesIO()
            torch.save(net.eval(), file)
            assert b"gradcheck_suite" not in file.getvalue()
            net.train()
            assert not any(module._forward_hooks for module in net.modules())

    audited(loop)
    assert nn.Module.__call__ is call
