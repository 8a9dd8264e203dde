"""Loops that clear, accumulate, reuse or replace gradients on purpose: nothing is to be said."""

from __future__ import annotations

import pytest
import torch
from torch import nn


def zero_before(net, optimizer, batch, step):
    optimizer.zero_grad()
    net(batch()).sum().backward()
    optimizer.step()


def zero_between_forward_and_backward(net, optimizer, batch, step):
    loss = net(batch()).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def zero_after(net, optimizer, batch, step):
    net(batch()).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def zero_in_place(net, optimizer, batch, step):
    optimizer.zero_grad(set_to_none=False)
    net(batch()).sum().backward()
    optimizer.step()


def model_zero_grad(net, optimizer, batch, step):
    net.zero_grad()
    net(batch()).sum().backward()
    optimizer.step()


def manual_none(net, optimizer, batch, step):
    for parameter in net.parameters():
        parameter.grad = None
    net(batch()).sum().backward()
    optimizer.step()


def manual_zero(net, optimizer, batch, step):
    for parameter in net.parameters():
        if parameter.grad is not None:
            parameter.grad.zero_()
    net(batch()).sum().backward()
    optimizer.step()


def manual_data_zero(net, optimizer, batch, step):
    for parameter in net.parameters():
        if parameter.grad is not None:
            parameter.grad.data.zero_()
    net(batch()).sum().backward()
    optimizer.step()


def new_zeros(net, optimizer, batch, step):
    for parameter in net.parameters():
        parameter.grad = torch.zeros_like(parameter)
    net(batch()).sum().backward()
    optimizer.step()


def accumulation_window(net, optimizer, batch, step):
    (net(batch()).sum() / 7).backward()
    if step % 7 == 6:
        optimizer.step()
        optimizer.zero_grad()


def two_losses(net, optimizer, batch, step):
    optimizer.zero_grad()
    net(batch()).sum().backward()
    net(batch()).pow(2).sum().backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()


def gradient_momentum(net, optimizer, batch, step):
    for parameter in net.parameters():
        if parameter.grad is not None:
            parameter.grad.mul_(0.9)
    net(batch()).sum().backward()
    optimizer.step()


def gradient_momentum_through_data(net, optimizer, batch, step):
    for parameter in net.parameters():
        if parameter.grad is not None:
            parameter.grad.data.mul_(0.9)
    net(batch()).sum().backward()
    optimizer.step()


def gradients_overwritten_before_the_step(net, optimizer, batch, step):
    net(batch()).sum().backward()
    for parameter in net.parameters():
        parameter.grad.copy_(torch.ones_like(parameter))
    optimizer.step()


def gradients_from_autograd_grad(net, optimizer, batch, step):
    loss = net(batch()).sum()
    for parameter, gradient in zip(
        net.parameters(), torch.autograd.grad(loss, list(net.parameters())), strict=True
    ):
        parameter.grad = gradient
    optimizer.step()


def frozen_layer(net, optimizer, batch, step):
    if step == 2:
        net[0].requires_grad_(False)
    optimizer.param_groups[0]["params"][2].grad = None
    optimizer.param_groups[0]["params"][3].grad = None
    if step < 2:
        net.zero_grad()
    net(batch()).sum().backward()
    optimizer.step()


BODIES = [
    zero_before,
    zero_between_forward_and_backward,
    zero_after,
    zero_in_place,
    model_zero_grad,
    manual_none,
    manual_zero,
    manual_data_zero,
    new_zeros,
    accumulation_window,
    two_losses,
    gradient_momentum,
    gradient_momentum_through_data,
    gradients_overwritten_before_the_step,
    gradients_from_autograd_grad,
    frozen_layer,
]


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize(
    "make_optimizer",
    [
        lambda parameters: torch.optim.SGD(parameters, lr=1e-3, momentum=0.9, weight_decay=0.1),
        lambda parameters: torch.optim.Adam(parameters, foreach=True),
        lambda parameters: torch.optim.AdamW(parameters, fused=True),
    ],
    ids=["sgd", "adam-foreach", "adamw-fused"],
)
def test_nothing_is_said(audited, make_net, batch, body, make_optimizer):
    def loop():
        net = make_net()
        optimizer = make_optimizer(net.parameters())
        for step in range(16):
            body(net, optimizer, batch, step)

    found = {finding.code for finding in audited(loop).findings}
    # What its gradient goes on to move is told of, and no missing zero_grad.
    assert found == ({"GCS409"} if body is frozen_layer else set())


def test_a_gan_whose_generator_pollutes_the_critic(audited):
    def loop():
        generator, critic = nn.Linear(4, 4), nn.Linear(4, 1)
        first = torch.optim.SGD(generator.parameters(), lr=1e-2)
        second = torch.optim.SGD(critic.parameters(), lr=1e-2)
        for _ in range(8):
            fake = generator(torch.randn(3, 4))
            second.zero_grad()
            (critic(torch.randn(3, 4)) - critic(fake.detach())).mean().backward()
            second.step()
            first.zero_grad()
            critic(fake).mean().backward()
            first.step()

    assert audited(loop).findings == ()


def test_pairs_of_an_optimizer_and_its_loss(audited):
    def loop():
        trunk, one, two = nn.Linear(4, 4), nn.Linear(4, 1), nn.Linear(4, 1)
        optimizers = (
            torch.optim.SGD([*trunk.parameters(), *one.parameters()], lr=1e-2),
            torch.optim.SGD(two.parameters(), lr=1e-2),
        )
        for _ in range(8):
            features = trunk(torch.randn(3, 4))
            first = (one(features) + two(features)).square().mean()
            second = two(features.detach()).square().mean()
            for optimizer, loss in zip(optimizers, (first, second), strict=True):
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()

    assert audited(loop).findings == ()


def test_two_optimizers_that_share_parameters(audited, make_net, batch):
    def loop():
        net = make_net()
        one = torch.optim.SGD(net.parameters(), lr=1e-2)
        two = torch.optim.Adam(net.parameters())
        for _ in range(6):
            one.zero_grad()
            net(batch()).sum().backward()
            one.step()
            net(batch()).sum().backward()
            two.step()

    assert audited(loop).findings == ()


def test_an_optimizer_made_anew_each_time(audited, make_net, batch):
    def loop():
        net = make_net()
        for _ in range(6):
            optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
            optimizer.zero_grad()
            net(batch()).sum().backward()
            optimizer.step()

    assert audited(loop).findings == ()


def test_a_step_that_the_scaler_skips(audited, make_net, batch):
    def loop():
        net = make_net()
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        for step in range(8):
            optimizer.zero_grad()
            loss = net(batch()).sum() * (float("inf") if step == 3 else 1.0)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()

    assert audited(loop).findings == ()


def test_an_lbfgs_closure(audited, make_net, batch):
    def loop():
        net = make_net()
        optimizer = torch.optim.LBFGS(net.parameters(), lr=0.1, max_iter=4)
        data = batch()

        def closure():
            optimizer.zero_grad()
            loss = net(data).pow(2).mean()
            loss.backward()
            return loss

        for _ in range(4):
            optimizer.step(closure)

    assert audited(loop).findings == ()


def test_sparse_gradients(audited):
    def loop():
        table = nn.Embedding(10, 3, sparse=True)
        optimizer = torch.optim.SparseAdam(table.parameters())
        for clear in (True, False) * 4:
            optimizer.zero_grad(set_to_none=clear)
            table(torch.tensor([1, 2, 2])).sum().backward()
            optimizer.step()

    assert audited(loop).findings == ()


def test_a_step_inside_backward(audited, make_net, batch):
    def loop():
        net = make_net()
        optimizers = {p: torch.optim.SGD([p], lr=1e-2) for p in net.parameters()}

        def step(parameter):
            optimizers[parameter].step()
            optimizers[parameter].zero_grad()

        for parameter in net.parameters():
            parameter.register_post_accumulate_grad_hook(step)
        for _ in range(6):
            net(batch()).sum().backward()

    assert audited(loop).findings == ()
