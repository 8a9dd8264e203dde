"""Gradients and graphs that nothing uses, and steps that only look as if they used none."""

from __future__ import annotations

import torch
from torch import nn

from tests.auditing.loops.bank import buggy, clean, data, mse, net, setup


@buggy("GCS302")
def steps_before_the_second_loss():
    model, optimizer = setup()
    for x, y in data():
        optimizer.zero_grad()
        mse(model, x, y).backward()
        optimizer.step()
        model(-x).abs().mean().backward()  # <- here


@buggy("GCS302")
def last_window_of_each_epoch_is_never_finished():
    model, optimizer = setup()
    for _ in range(5):
        optimizer.zero_grad()  # <- here
        pending = 0
        for x, y in data(6):
            (mse(model, x, y) / 4).backward()
            pending += 1
            if pending == 4:
                optimizer.step()
                optimizer.zero_grad()
                pending = 0


@clean
def last_window_of_each_epoch_is_finished():
    model, optimizer = setup()
    for _ in range(5):
        optimizer.zero_grad()
        for index, (x, y) in enumerate(data(6), start=1):
            (mse(model, x, y) / (4 if index <= 4 else 2)).backward()
            if index in (4, 6):
                optimizer.step()
                optimizer.zero_grad()


@clean
def gradients_that_are_measured_and_thrown_away():
    model, optimizer = setup()
    norms = []
    for x, y in data():
        optimizer.zero_grad()
        mse(model, x, y).backward()
        optimizer.step()
        optimizer.zero_grad()
        model(x).mean().backward()
        norms.append(sum(each.grad.norm() for each in model.parameters()))
    return norms


@clean
def inputs_that_are_attacked_after_each_step():
    model, optimizer = setup()
    for x, y in data():
        optimizer.zero_grad()
        mse(model, x, y).backward()
        optimizer.step()
        attacked = x.clone().requires_grad_()
        mse(model, attacked, y).backward()


@clean
def batches_that_a_guard_leaves_out():
    model, optimizer = setup()
    for index, (x, y) in enumerate(data(24)):
        optimizer.zero_grad()
        loss = mse(model, x, y)
        loss.backward()
        if index % 5 == 3:
            optimizer.zero_grad()
            continue
        optimizer.step()


@buggy("GCS309")
def actor_backward_before_the_steps_of_several_critics():
    actor = nn.Linear(4, 2)
    critics = [nn.Linear(6, 1) for _ in range(3)]
    of_actor = torch.optim.Adam(actor.parameters())
    of_critics = [torch.optim.Adam(each.parameters()) for each in critics]
    for x, y in data():
        values = torch.cat([critic(torch.cat([x, x[:, :2]], 1)) for critic in critics], 1)
        for each in of_critics:
            each.zero_grad()
        (values - y).pow(2).mean().backward()
        of_actor.zero_grad()
        wanted = torch.cat([critic(torch.cat([x, actor(x)], 1)) for critic in critics], 1)
        (-wanted.mean()).backward()  # <- here
        for each in of_critics:
            each.step()
        of_actor.step()


@clean
def critics_step_before_the_backward_of_the_actor():
    actor = nn.Linear(4, 2)
    critics = [nn.Linear(6, 1) for _ in range(3)]
    of_actor = torch.optim.Adam(actor.parameters())
    of_critics = [torch.optim.Adam(each.parameters()) for each in critics]
    for x, y in data():
        values = torch.cat([critic(torch.cat([x, x[:, :2]], 1)) for critic in critics], 1)
        for each in of_critics:
            each.zero_grad()
        (values - y).pow(2).mean().backward()
        for each in of_critics:
            each.step()
        of_actor.zero_grad()
        wanted = torch.cat([critic(torch.cat([x, actor(x)], 1)) for critic in critics], 1)
        (-wanted.mean()).backward()
        of_actor.step()


def penalty_by_slopes(critic, x):
    x = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(critic(x).sum(), x, create_graph=True)
    return (slope.norm(dim=1) - 1).pow(2).mean()


@buggy("GCS203")
def penalty_that_is_left_out_of_the_loss():
    critic, optimizer = setup()
    values = []
    for x, _ in data():
        gradient_penalty = penalty_by_slopes(critic, x)  # <- here
        loss = critic(x).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        values.append(gradient_penalty.item())


def slope_penalty(critic, x):
    x = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(critic(x).sum(), x, create_graph=True)
    return slope.norm(dim=1).pow(2).mean()


@clean
def penalty_that_is_evaluated_as_well():
    critic, optimizer = setup()
    values = []
    for x, _ in data():
        loss = critic(x).mean() + slope_penalty(critic, x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        values.append(slope_penalty(critic, x).item())


@buggy("GCS702")
def eval_in_the_loss_of_each_step():
    model, optimizer = setup(drop=True)

    def loss_of(x, y):
        model.eval()  # <- here
        around = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(mse(model, around, y), around)
        return mse(model, x + slope.sign(), y)

    for _ in range(3):
        model.train()
        for x, y in data(3):
            optimizer.zero_grad()
            loss_of(x, y).backward()
            optimizer.step()


@clean
def eval_for_an_attack_and_back():
    model, optimizer = setup(drop=True)

    def loss_of(x, y):
        model.eval()
        around = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(mse(model, around, y), around)
        model.train()
        return mse(model, x + slope.sign(), y)

    for _ in range(3):
        model.train()
        for x, y in data(3):
            optimizer.zero_grad()
            loss_of(x, y).backward()
            optimizer.step()


def probe():
    backbone = net(norm=True)
    for each in backbone.parameters():
        each.requires_grad_(False)
    model = nn.Sequential(backbone, nn.Linear(1, 1))
    return model, torch.optim.SGD(model[1].parameters(), lr=0.01)


@buggy("GCS409")
def frozen_backbone_in_training_mode():
    model, optimizer = probe()
    model.eval()
    for _ in range(2):
        model.train()  # <- here
        for x, y in data(6):
            optimizer.zero_grad()
            mse(model, x, y).backward()
            optimizer.step()


@clean
def frozen_backbone_in_evaluation_mode():
    model, optimizer = probe()
    for _ in range(2):
        model.train()
        model[0].eval()
        for x, y in data(6):
            optimizer.zero_grad()
            mse(model, x, y).backward()
            optimizer.step()
