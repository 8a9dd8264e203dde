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
