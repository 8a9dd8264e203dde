"""Runs that go on from a state of the model and of its optimizer, which is used or is lost."""

from __future__ import annotations

import copy

import torch
from torch import nn

from tests.auditing.loops.bank import buggy, clean, mse, net


class Heads(nn.Module):
    def __init__(self, names):
        super().__init__()
        self.body = nn.Linear(4, 4)
        self.heads = nn.ModuleDict({name: nn.Linear(4, 1) for name in names})

    def forward(self, x):
        return sum(head(self.body(x)) for head in self.heads.values())


def adam(model):
    return torch.optim.Adam(model.parameters(), lr=0.01)


def train(model, optimizer, steps=3):
    for _ in range(steps):
        optimizer.zero_grad()
        mse(model, torch.randn(6, 4), torch.randn(6, 1)).backward()
        optimizer.step()


def checkpoint_of(model, optimizer, steps=3):
    train(model, optimizer, steps)
    return copy.deepcopy({"model": model.state_dict(), "optimizer": optimizer.state_dict()})


def first_run(model):
    return checkpoint_of(model, adam(model))


def replace_by_copies(optimizer, *, keep_states):
    for group in optimizer.param_groups:
        for index, parameter in enumerate(group["params"]):
            made = nn.Parameter(parameter.detach().clone())
            group["params"][index] = made
            if keep_states and parameter in optimizer.state:
                optimizer.state[made] = optimizer.state.pop(parameter)


def train_by_copies(model, optimizer):
    for _ in range(3):
        copies = optimizer.param_groups[0]["params"]
        model.zero_grad()
        mse(model, torch.randn(6, 4), torch.randn(6, 1)).backward()
        for mine, made in zip(model.parameters(), copies, strict=True):
            made.grad = mine.grad.clone()
        optimizer.step()
        with torch.no_grad():
            for mine, made in zip(model.parameters(), copies, strict=True):
                mine.copy_(made)


@buggy("GCS415")
def copies_in_the_groups_after_the_moments_were_loaded():
    state = first_run(net())
    model = net()
    optimizer = adam(model)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])  # <- here
    replace_by_copies(optimizer, keep_states=False)
    train_by_copies(model, optimizer)


@clean
def copies_in_the_groups_with_the_moments_that_were_loaded():
    state = first_run(net())
    model = net()
    optimizer = adam(model)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    replace_by_copies(optimizer, keep_states=True)
    train_by_copies(model, optimizer)


@clean
def copies_in_the_groups_before_the_moments_are_loaded():
    state = first_run(net())
    model = net()
    optimizer = adam(model)
    model.load_state_dict(state["model"])
    replace_by_copies(optimizer, keep_states=False)
    optimizer.load_state_dict(state["optimizer"])
    train_by_copies(model, optimizer)


@buggy("GCS415")
def optimizer_made_again_after_its_moments_were_loaded():
    state = first_run(net())
    model = net()
    optimizer = adam(model)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])  # <- here
    optimizer = adam(model)
    train(model, optimizer)


@clean
def optimizer_made_before_its_moments_are_loaded():
    state = first_run(net())
    model = net()
    model.load_state_dict(state["model"])
    optimizer = adam(model)
    optimizer.load_state_dict(state["optimizer"])
    train(model, optimizer)


@clean
def another_optimizer_for_the_second_half_of_a_resumed_run():
    state = first_run(net())
    model = net()
    optimizer = adam(model)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    train(model, optimizer)
    train(model, torch.optim.SGD(model.parameters(), lr=0.01))


@clean
def another_kind_of_optimizer_after_a_checkpoint():
    state = first_run(net())
    model = net()
    optimizer = adam(model)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    train(model, torch.optim.SGD(model.parameters(), lr=0.01))


@clean
def moments_put_back_before_each_task():
    model = net()
    optimizer = adam(model)
    state = checkpoint_of(model, optimizer)
    for _ in range(3):
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        train(model, optimizer)


@buggy("GCS415")
def heads_in_another_order_in_the_resumed_run():
    state = first_run(Heads(["news", "mail"]))
    model = Heads(["mail", "news"])
    optimizer = adam(model)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])  # <- here
    train(model, optimizer)


@clean
def heads_in_the_same_order_in_the_resumed_run():
    state = first_run(Heads(["news", "mail"]))
    model = Heads(["news", "mail"])
    optimizer = adam(model)
    optimizer.load_state_dict(state["optimizer"])
    model.load_state_dict(state["model"])
    train(model, optimizer)


@clean
def heads_in_another_order_with_the_groups_of_before():
    state = first_run(Heads(["news", "mail"]))
    model = Heads(["mail", "news"])
    named = dict(model.named_parameters())
    optimizer = torch.optim.Adam([named[name] for name in state["model"]], lr=0.01)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    train(model, optimizer)


@clean
def heads_in_another_order_without_the_moments():
    state = first_run(Heads(["news", "mail"]))
    model = Heads(["mail", "news"])
    model.load_state_dict(state["model"])
    train(model, adam(model))
