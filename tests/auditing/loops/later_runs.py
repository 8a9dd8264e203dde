"""Loops of which a later run, after many steps of an earlier one, trains what was replaced."""

from __future__ import annotations

import copy
import io

import torch

from tests.auditing.loops.bank import buggy, clean, data, mse, net

FIRST, LATER = 24, 6


def fit(model, optimizer, steps):
    for x, y in data(steps):
        optimizer.zero_grad()
        mse(model, x, y).backward()
        optimizer.step()


def earlier_run():
    model = net()
    fit(model, torch.optim.Adam(model.parameters()), FIRST)
    return model


def reloaded(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@buggy("GCS308")
def whole_model_loaded_after_its_optimizer_in_a_resumed_run():
    saved = earlier_run()
    model = net()
    optimizer = torch.optim.Adam(model.parameters())
    model = reloaded(saved)  # <- here
    fit(model, optimizer, LATER)


@buggy("GCS308")
def agent_whose_policy_is_made_again_for_the_next_task():
    class Agent:
        def __init__(self):
            self.policy = net()
            self.optimizer = torch.optim.SGD(self.policy.parameters(), lr=0.01)  # <- here

        def reset(self):
            self.policy = net()

    earlier_run()
    agent = Agent()
    agent.reset()
    fit(agent.policy, agent.optimizer, LATER)


@buggy("GCS308")
def second_fold_trains_a_copy():
    start = net()
    for fold in range(2):
        model = copy.deepcopy(start)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        if fold:
            model = copy.deepcopy(start)  # <- here
        fit(model, optimizer, LATER if fold else FIRST)


@clean
def state_loaded_in_a_resumed_run():
    saved = earlier_run()
    model = net()
    optimizer = torch.optim.Adam(model.parameters())
    model.load_state_dict(reloaded(saved).state_dict())
    fit(model, optimizer, LATER)


@clean
def each_fold_with_a_model_and_an_optimizer_of_its_own():
    for _ in range(4):
        earlier_run()


@clean
def inner_optimizers_of_many_tasks():
    meta = net()
    outer = torch.optim.SGD(meta.parameters(), lr=0.1)
    for _ in range(FIRST):
        fast = copy.deepcopy(meta)
        fit(fast, torch.optim.SGD(fast.parameters(), lr=0.01), 2)
        outer.zero_grad()
        for mine, theirs in zip(meta.parameters(), fast.parameters(), strict=True):
            mine.grad = (mine - theirs).detach()
        outer.step()
