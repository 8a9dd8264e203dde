"""Copies of networks: all of one follows what is trained, or none, or a part is left behind."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody writes it
from torch import nn

from tests.auditing.loops.bank import buggy, clean


class Agent:
    """Two critics, and their targets."""

    def __init__(self):
        self.critics = [nn.Linear(4, 1), nn.Linear(4, 1)]
        self.q1, self.q2 = self.critics
        self.q1_target, self.q2_target = map(copy.deepcopy, self.critics)
        parameters = [p for each in self.critics for p in each.parameters()]
        self.optimizer = torch.optim.Adam(parameters, lr=0.01)

    def step(self):
        state = torch.randn(8, 4)
        with torch.no_grad():
            target = 1 + 0.9 * torch.min(self.q1_target(state), self.q2_target(state))
        self.optimizer.zero_grad()
        (F.mse_loss(self.q1(state), target) + F.mse_loss(self.q2(state), target)).backward()
        self.optimizer.step()

    def follow(self, source, target):
        with torch.no_grad():
            for ours, theirs in zip(target.parameters(), source.parameters(), strict=True):
                ours.lerp_(theirs, 0.05)  # <- here


@buggy("GCS414")
def target_of_the_second_critic_is_forgotten():
    agent = Agent()
    for _ in range(8):
        agent.step()
        agent.follow(agent.q1, agent.q1_target)


@clean
def targets_of_both_critics_follow():
    agent = Agent()
    for _ in range(8):
        agent.step()
        agent.follow(agent.q1, agent.q1_target)
        agent.follow(agent.q2, agent.q2_target)


@clean
def targets_that_are_loaded_now_and_then():
    agent = Agent()
    for number in range(18):
        agent.step()
        if number % 5 == 4:
            agent.q1_target.load_state_dict(agent.q1.state_dict())
            agent.q2_target.load_state_dict(agent.q2.state_dict())


@clean
def reference_that_stays_beside_a_trained_model():
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
    reference = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(8):
        x = torch.randn(8, 4)
        optimizer.zero_grad()
        F.mse_loss(model(x), reference(x) + 1).backward()
        optimizer.step()


@clean
def copies_that_are_trained_by_hand():
    model = nn.Linear(4, 2)
    other = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(8):
        x = torch.randn(8, 4)
        optimizer.zero_grad()
        other.zero_grad()
        (model(x).square().mean() + other(x).square().mean()).backward()
        optimizer.step()
        with torch.no_grad():
            for p in other.parameters():
                p.sub_(p.grad, alpha=0.05)


def adapted(model, run, optimizer):
    copied = copy.deepcopy(model)
    inner = optimizer(copied.parameters())
    for _ in range(2):
        inner.zero_grad()
        run(model, copied)(torch.randn(3, 4)).square().mean().backward()
        inner.step()
    return copied


def meta_training(run, tasks=6, optimizer=torch.optim.Adam):
    model = nn.Linear(4, 1)
    outer = torch.optim.SGD(model.parameters(), lr=0.01)
    for task in range(tasks):
        copied = adapted(model, lambda *both, task=task: run(task, *both), optimizer)
        outer.zero_grad()
        (copied(torch.randn(6, 4)) - 1).square().mean().backward()
        for mine, theirs in zip(model.parameters(), copied.parameters(), strict=True):
            mine.grad = theirs.grad.clone()
        outer.step()


@buggy("GCS303")
def inner_loop_that_runs_the_original():
    meta_training(lambda _task, model, _copied: model)


@clean
def inner_loop_that_runs_the_copy():
    meta_training(lambda _task, _model, copied: copied)


@clean
def inner_loop_that_runs_the_copy_but_once():
    meta_training(lambda task, model, copied: model if task == 2 else copied)


@clean
def optimizers_that_step_in_all_turns_but_their_own():
    models = [nn.Linear(4, 1) for _ in range(4)]
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.01) for each in models]
    for turn in range(8):
        for each in optimizers:
            each.zero_grad()
        models[turn % 4](torch.randn(6, 4)).square().mean().backward()
        for each in optimizers:
            each.step()


class ByHand(torch.optim.SGD):
    """Moves its parameters without gradients."""

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.add_(torch.randn_like(parameter), alpha=0.01)


@clean
def optimizers_made_anew_that_need_no_gradient():
    meta_training(lambda _task, model, _copied: model, optimizer=ByHand)
