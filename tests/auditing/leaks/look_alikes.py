"""Correct loops that keep something of each step."""

from __future__ import annotations

import collections
import copy
import functools
import queue
import weakref

import torch
from torch import nn

from tests.auditing.leaks.bank import look_alike, steps

LONG = 45


@look_alike
def bounded_deque(session):
    recent = collections.deque(maxlen=10)
    with session:
        for _, loss in steps(LONG):
            recent.append(loss)


@look_alike
def short_run_of_a_bounded_deque(session):
    recent = collections.deque(maxlen=100)
    with session:
        for _, loss in steps(6):
            recent.append(loss)


@look_alike
def window_by_hand_in_a_short_run(session):
    recent = []
    with session:
        for _, loss in steps(6):
            recent.append(loss)
            if len(recent) > 10:
                recent.pop(0)


@look_alike
def replay_buffer(session):
    memory = []
    with session:
        for out, _ in steps(LONG):
            memory.append((torch.randn(4), out.detach(), 1.0))


@look_alike
def truncated_state(session):
    cell = nn.GRUCell(4, 4)
    optimizer = torch.optim.SGD(cell.parameters(), lr=1e-3)
    hidden = torch.zeros(2, 4)
    with session:
        for _ in range(8):
            for _ in range(3):
                hidden = cell(torch.randn(2, 4), hidden)
            optimizer.zero_grad()
            hidden.sum().backward()
            optimizer.step()
            hidden = hidden.detach()


@look_alike
def exponential_average_of_weights(session):
    net = nn.Linear(4, 1)
    shadow = copy.deepcopy(net)
    with session:
        for _ in steps(LONG, net=net):
            with torch.no_grad():
                for old, new in zip(shadow.parameters(), net.parameters(), strict=True):
                    old.mul_(0.9).add_(new, alpha=0.1)


@look_alike
def metric_floats(session):
    values, total = [], 0.0
    with session:
        for _, loss in steps(LONG):
            values.append(loss.item())
            total += float(loss)


@look_alike
def running_mean_of_detached(session):
    mean = torch.zeros(())
    with session:
        for step, (_, loss) in enumerate(steps(LONG)):
            mean = mean + (loss.detach() - mean) / (step + 1)


@look_alike
def cache_of_fixed_size(session):
    current = {}

    @functools.lru_cache(maxsize=4)
    def cached(step):
        return current["loss"], step

    with session:
        for step, (_, loss) in enumerate(steps(LONG)):
            current["loss"] = loss
            cached(step)


@look_alike
def queue_that_is_read(session):
    jobs = queue.Queue()
    with session:
        for _, loss in steps(LONG):
            jobs.put(loss)
            if jobs.qsize() > 4:
                jobs.get().item()


@look_alike
def weak_references(session):
    alive, seen = weakref.WeakValueDictionary(), []
    with session:
        for step, (_, loss) in enumerate(steps(LONG)):
            alive[step] = loss
            seen.append(weakref.ref(loss))


@look_alike
def losses_of_one_step(session):
    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    with session:
        for _ in range(4):
            optimizer.zero_grad()
            parts = []
            for _ in range(5):
                loss = net(torch.randn(3, 4)).pow(2).mean() / 5
                loss.backward()
                parts.append(loss)
            optimizer.step()
            sum(parts).item()


@look_alike
def losses_of_two_players(session):
    first, second = nn.Linear(4, 1), nn.Linear(4, 1)
    optimizers = [torch.optim.SGD(net.parameters(), lr=1e-3) for net in (first, second)]
    with session:
        for _ in range(4):
            real = first(torch.randn(3, 4)).pow(2).mean()
            optimizers[0].zero_grad()
            real.backward()
            fake = first(torch.randn(3, 4)).pow(2).mean()
            fake.backward()
            optimizers[0].step()
            other = second(torch.randn(3, 4)).pow(2).mean()
            optimizers[1].zero_grad()
            other.backward()
            optimizers[1].step()
            total = real + fake + other
            total.item()


@look_alike
def first_last_and_best(session):
    kept, least = {}, float("inf")
    with session:
        for _, loss in steps(LONG):
            kept.setdefault("first", loss)
            kept["last"] = loss
            if loss.item() < least:
                kept["best"], least = loss, loss.item()


@look_alike
def an_epochs_losses(session):
    with session:
        for _ in range(6):
            losses = []
            for _, loss in steps(5):
                losses.append(loss)
            torch.stack(losses).mean().item()


@look_alike
def hook_that_is_read_each_step(session):
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    features = []
    net[0].register_forward_hook(lambda _module, _inputs, output: features.append(output))
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    with session:
        for _ in range(8):
            optimizer.zero_grad()
            loss = net(torch.randn(3, 4)).sum() + features[-1].pow(2).sum()
            loss.backward()
            optimizer.step()
            features.clear()


@look_alike
def last_output_on_each_module(session):
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 1))

    def remember(module, _inputs, output):
        module.last_output = output

    for layer in net:
        layer.register_forward_hook(remember)
    with session:
        for _ in steps(LONG, net=net):
            pass
