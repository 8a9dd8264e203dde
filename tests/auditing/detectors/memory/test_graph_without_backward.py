"""Graphs that pile up and that no backward goes through."""

from __future__ import annotations

from collections import deque

import pytest
import torch
from torch import nn


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(4, 4)
        self.hidden = None

    def forward(self, x):
        self.hidden = self.cell(x, self.hidden)  # <- here
        return self.hidden.sum()


def hidden_state_of_a_module():
    model = Forecaster()
    for _ in range(12):
        model(torch.randn(2, 4)).item()


def hidden_state_in_a_variable():
    cell, hidden = nn.GRUCell(4, 4), None
    for _ in range(12):
        hidden = cell(torch.randn(2, 4), hidden)  # <- here
    return hidden


def hidden_state_beside_an_output():
    model, state = nn.LSTM(4, 4), None
    for _ in range(12):
        out, state = model(torch.randn(1, 2, 4), state)  # <- here
        out.sum().item()


def trained(step, steps=12):
    """Train a network, with ``step`` in each turn."""
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
    for number in range(steps):
        optimizer.zero_grad()
        net(torch.randn(3, 4)).square().mean().backward()
        optimizer.step()
        step(number)


class Buffer:
    def __init__(self):
        self.data = deque(maxlen=10_000)

    def push(self, *transition):
        self.data.append(transition)


def replay_buffer():
    actor, buffer = nn.Linear(4, 2), Buffer()

    def act(_):
        observation = torch.randn(4)
        action = actor(observation).tanh()  # <- here
        buffer.push(observation, action)

    trained(act)


def exceptions_with_their_frames():
    net, failed = nn.Linear(4, 1), []

    def check(x):
        loss = net(x).square().mean()
        raise ValueError(f"bad batch of {len(loss.shape)}")

    def attempt(_):
        try:
            check(torch.randn(3, 4))
        except ValueError as error:
            failed.append(error)  # <- here

    trained(attempt)


def running_statistic():
    net = nn.Linear(4, 4)
    mean = torch.zeros(4)

    def follow(_):
        nonlocal mean
        mean = 0.9 * mean + 0.1 * net(torch.randn(3, 4)).tanh().mean(0)  # <- here

    trained(follow)


def validation_losses():
    net, history = nn.Linear(4, 1), []
    trained(lambda _: history.append(net(torch.randn(3, 4)).square().mean()))  # <- here


@pytest.mark.parametrize(
    ("loop", "place"),
    [
        (hidden_state_of_a_module, Forecaster.forward),
        (hidden_state_in_a_variable, hidden_state_in_a_variable),
        (hidden_state_beside_an_output, hidden_state_beside_an_output),
        (replay_buffer, replay_buffer),
        (exceptions_with_their_frames, exceptions_with_their_frames),
        (running_statistic, running_statistic),
        (validation_losses, validation_losses),
    ],
)
def test_the_holder_is_named_at_the_line_to_change(audited, only, line_of, loop, place):
    finding = only(audited(loop), "GCS201")
    assert finding.severity.value == "warning"
    assert finding.location is not None
    assert finding.location.line == line_of(place)
    assert finding.message.endswith(", and one more with each; no backward has freed them")


def test_the_words(audited, only):
    finding = only(audited(hidden_state_of_a_module), "GCS201")
    assert "`model.hidden` in hidden_state_of_a_module() keeps the graphs of 1" in finding.message
    assert "calls alive, the oldest since the first call" in finding.message
    assert finding.hint is not None
    assert "detach" in finding.hint


def detached_hidden_state():
    cell, hidden = nn.GRUCell(4, 4), None
    for _ in range(20):
        hidden = cell(torch.randn(2, 4), hidden).detach()


def inference_without_graph():
    model = Forecaster()
    with torch.no_grad():
        for _ in range(20):
            model(torch.randn(2, 4)).item()


def sequences_that_are_trained():
    cell = nn.GRUCell(4, 4)
    optimizer = torch.optim.SGD(cell.parameters(), lr=1e-2)
    for _ in range(3):
        hidden, outputs = None, []
        for _ in range(40):
            hidden = cell(torch.randn(2, 4), hidden)
            outputs.append(hidden)
        optimizer.zero_grad()
        torch.stack(outputs).square().mean().backward()
        optimizer.step()


def first_sequence_without_an_optimizer():
    cell, hidden, outputs = nn.GRUCell(4, 4), None, []
    for _ in range(40):
        hidden = cell(torch.randn(2, 4), hidden)
        outputs.append(hidden)
    torch.stack(outputs).square().mean().backward()


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 2)
        self.saved = []

    def forward(self, x):
        return self.net(x).log_softmax(-1)


def episodes():
    policy = Policy()
    optimizer = torch.optim.SGD(policy.parameters(), lr=1e-2)
    for _ in range(4):
        for _ in range(30):
            policy.saved.append(policy(torch.randn(4))[0])
        optimizer.zero_grad()
        torch.stack(policy.saved).sum().neg().backward()
        optimizer.step()
        policy.saved.clear()


def delayed_generator_steps():
    critic, generator = nn.Linear(4, 1), nn.Linear(4, 4)
    of_critic = torch.optim.SGD(critic.parameters(), lr=1e-2)
    of_generator = torch.optim.SGD(generator.parameters(), lr=1e-2)
    for _ in range(4):
        fakes = []
        for _ in range(5):
            fakes.append(generator(torch.randn(3, 4)))
            of_critic.zero_grad()
            critic(fakes[-1].detach()).mean().backward()
            of_critic.step()
        of_generator.zero_grad()
        sum(critic(each).mean() for each in fakes).backward()
        of_generator.step()


def replay_buffer_without_graphs():
    actor, buffer = nn.Linear(4, 2), Buffer()

    def act(_):
        with torch.no_grad():
            buffer.push(torch.randn(4), actor(torch.randn(4)).tanh())

    trained(act)


def short_window():
    net, recent = nn.Linear(4, 1), deque(maxlen=4)
    trained(lambda _: recent.append(net(torch.randn(3, 4)).square().mean()))


@pytest.mark.parametrize(
    "loop",
    [
        detached_hidden_state,
        inference_without_graph,
        sequences_that_are_trained,
        first_sequence_without_an_optimizer,
        episodes,
        delayed_generator_steps,
        replay_buffer_without_graphs,
        short_window,
    ],
)
def test_nothing_is_said_of_graphs_that_are_used_or_let_go(audited, loop):
    codes = {each.code for each in audited(loop).findings if each.severity.value != "note"}
    assert not codes & {"GCS201", "GCS202", "GCS203", "GCS205"}


def test_the_last_of_several_backwards_that_retains_what_it_need_not(audited, line_of):
    def loop():
        net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3))
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
        kept = []
        for _ in range(6):
            losses = [each.square().mean() for each in net(torch.randn(3, 4)).unbind(1)]
            optimizer.zero_grad()
            for loss in losses:
                loss.backward(retain_graph=True)  # <- here
            kept = losses
            optimizer.step()
        return kept

    (finding,) = [each for each in audited(loop).findings if each.code == "GCS203"]
    assert finding.severity.value == "warning"
    assert finding.location is not None
    assert finding.location.line == line_of(loop)
    assert finding.message.startswith("the last backward(retain_graph=True) of each step kept")
