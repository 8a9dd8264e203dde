"""Target and reference networks that are the network itself (GCS111), and those that are not."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as everybody writes it

from gradcheck_suite.findings import Severity


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))

    def forward(self, x):
        return self.body(x)


def step(optimizer, loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


class Agent:
    def __init__(self, net, target):
        self.net = net
        self.target = target  # <- here
        self.optimizer = torch.optim.Adam(net.parameters())

    def values(self, net, x):
        return net(x).max(1).values

    def train(self, steps=6):
        for _ in range(steps):
            x, y = torch.randn(2, 5, 4)
            with torch.no_grad():
                expected = 1 + 0.9 * self.values(self.target, y)
            step(self.optimizer, F.mse_loss(self.values(self.net, x), expected))


class DetachingAgent(Agent):
    def train(self, steps=6):
        for _ in range(steps):
            x, y = torch.randn(2, 5, 4)
            expected = 1 + 0.9 * self.target(y).max(1).values.detach()
            step(self.optimizer, F.mse_loss(self.net(x).max(1).values, expected))


class Teacher(nn.Module):
    def __init__(self, student):
        super().__init__()
        self.student = student
        self.slow = student  # <- here

    def loss(self, x):
        with torch.no_grad():
            target = self.slow(x + 0.1 * torch.randn_like(x))
        return F.mse_loss(self.student(x), target)


def the_network_itself():
    net = Net()
    Agent(net, net).train()


def a_shallow_copy():
    net = Net()
    Agent(net, copy.copy(net)).train()


def a_part_of_a_module():
    model = Teacher(Net())
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(6):
        step(optimizer, model.loss(torch.randn(5, 4)))


def a_variable():
    student = Net()
    teacher = student  # <- here
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
    for _ in range(6):
        x = torch.randn(5, 4)
        with torch.no_grad():
            soft = teacher(x).softmax(1)
        step(optimizer, F.cross_entropy(student(x), soft))


@pytest.mark.parametrize(
    ("loop", "place", "words"),
    [
        (the_network_itself, Agent, "`self.target` has the parameters of `self.net` themselves"),
        (a_shallow_copy, Agent, "`self.target` has the parameters of `self.net` themselves"),
        (a_part_of_a_module, Teacher, "`self.slow` has the parameters of `self.student`"),
        (a_variable, a_variable, "`teacher` has the parameters of `student` themselves"),
    ],
)
def test_a_network_is_its_own_target(audited, line_of, loop, place, words):
    session = audited(loop)
    (finding,) = [each for each in session.findings if each.code == "GCS111"]
    assert finding.severity is Severity.WARNING
    assert finding.location.line == line_of(place)
    assert words in finding.message
    assert "with a graph" in finding.message
    assert "copy.deepcopy" in finding.hint


def test_a_result_that_may_be_detached_is_a_note(audited, only):
    net = Net()
    finding = only(audited(DetachingAgent(net, net).train), "GCS111")
    assert finding.severity is Severity.NOTE


def a_copy():
    net = Net()
    Agent(net, copy.deepcopy(net)).train()


def one_name():
    net = Net()
    agent = Agent(net, None)
    for _ in range(6):
        x, y = torch.randn(2, 5, 4)
        with torch.no_grad():
            expected = agent.net(y).max(1).values
        step(agent.optimizer, F.mse_loss(agent.net(x).max(1).values, expected))


def evaluated_by_another_name():
    model = Net()
    net = model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(12):
        step(optimizer, model(torch.randn(5, 4)).square().mean())
        if epoch % 4 == 3:
            with torch.no_grad():
                net(torch.randn(5, 4))


def rolled_out_by_another_name():
    model = Net()
    actor = model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(6):
        with torch.no_grad():
            states = [actor(torch.randn(1, 4)) for _ in range(5)]
        step(optimizer, F.mse_loss(model(torch.randn(5, 4)), torch.cat(states)))


class Siamese(nn.Module):
    def __init__(self):
        super().__init__()
        self.left = self.right = Net()

    def loss(self, x, y):
        return F.mse_loss(self.left(x), self.right(y))


def tied_towers():
    model = Siamese()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(6):
        step(optimizer, model.loss(*torch.randn(2, 5, 4)))


@pytest.mark.parametrize(
    "loop",
    [a_copy, one_name, evaluated_by_another_name, rolled_out_by_another_name, tied_towers],
)
def test_networks_that_are_meant(audited, loop):
    assert not audited(loop).findings
