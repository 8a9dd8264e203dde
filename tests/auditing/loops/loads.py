"""States that are loaded, and what is done to the weights afterwards."""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import nn

from tests.auditing.loops.bank import buggy, clean, data, mse, net


def _train(model, steps=5):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for x, y in data(steps):
        optimizer.zero_grad()
        mse(model, x, y).backward()
        optimizer.step()


def _initialize(layer):
    if isinstance(layer, nn.Linear):
        nn.init.kaiming_normal_(layer.weight)  # <- here
        nn.init.zeros_(layer.bias)


class Scaled(nn.Module):
    """A layer that sets itself by its first batch."""

    def __init__(self, *, remembers):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))
        self.body = nn.Linear(4, 1)
        self.is_set = False
        if remembers:
            self.register_buffer("was_set", torch.zeros(()))

    def forward(self, x):
        if not self.is_set and not getattr(self, "was_set", 0):
            with torch.no_grad():
                self.scale.copy_(1 / x.std(0))
            self.is_set = True
            if hasattr(self, "was_set"):
                self.was_set.fill_(1)
        return self.body(self.scale * x)


class Normed(nn.Module):
    """A layer that keeps its weight at length one."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(1, 4))

    def forward(self, x):
        with torch.no_grad():
            self.weight.copy_(nn.functional.normalize(self.weight))
        return x @ self.weight.t()


def _state_of(model):
    _train(model)
    return {key: value.clone() for key, value in model.state_dict().items()}


@buggy("GCS415")
def initialized_after_it_was_loaded():
    state = _state_of(net())
    model = net()
    model.load_state_dict(state)
    model.apply(_initialize)
    _train(model)


@clean
def initialized_before_it_was_loaded():
    state = _state_of(net())
    model = net()
    model.apply(_initialize)
    model.load_state_dict(state)
    _train(model)


@clean
def head_initialized_after_a_load():
    state = _state_of(nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Linear(4, 1)))
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Linear(4, 1))
    model.load_state_dict(state)
    model[3].apply(_initialize)
    _train(model)


@buggy("GCS415")
def layer_that_forgets_that_it_is_set():
    state = _state_of(Scaled(remembers=False))
    model = Scaled(remembers=False)
    model.load_state_dict(state)
    _train(model)


@clean
def layer_that_remembers_that_it_is_set():
    state = _state_of(Scaled(remembers=True))
    model = Scaled(remembers=True)
    model.load_state_dict(state)
    _train(model)


@clean
def layer_that_writes_to_its_weight_in_each_step():
    state = _state_of(Normed())
    model = Normed()
    model.load_state_dict(state)
    _train(model)


@clean
def scaled_after_a_load():
    state = _state_of(net())
    model = net()
    model.load_state_dict(state)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(p * 0.9)
    _train(model)


@clean
def loaded_twice():
    state, other = _state_of(net()), _state_of(net())
    model = net()
    model.load_state_dict(state)
    model.load_state_dict(other)
    _train(model)


class _Masters:
    """Keeps copies of the weights in float32, and steps on those."""

    def __init__(self, model):
        self.own = list(model.parameters())
        self.copies = [nn.Parameter(p.detach().float()) for p in self.own]
        self.inner = torch.optim.SGD(self.copies, lr=0.01)

    def take_copies(self):
        with torch.no_grad():
            for copy, p in zip(self.copies, self.own, strict=True):
                copy.copy_(p)

    @torch.no_grad()
    def step(self):
        for copy, p in zip(self.copies, self.own, strict=True):
            copy.grad = p.grad.float()
            p.grad = None
        self.inner.step()
        for copy, p in zip(self.copies, self.own, strict=True):
            p.copy_(copy)


def _train_on(model, optimizer, steps=5):
    kind = next(model.parameters()).dtype
    for x, y in data(steps):
        nn.functional.mse_loss(model(x.to(kind)), y.to(kind)).backward()
        optimizer.step()


@buggy("GCS415")
def loaded_after_the_optimizer_had_copied_the_weights():
    state = _state_of(net())
    model = net().bfloat16()
    optimizer = _Masters(model)
    model.load_state_dict(state)  # <- here
    _train_on(model, optimizer)


@clean
def loaded_and_copied_by_the_optimizer_again():
    state = _state_of(net())
    model = net().bfloat16()
    optimizer = _Masters(model)
    model.load_state_dict(state)
    optimizer.take_copies()
    _train_on(model, optimizer)


@clean
def loaded_before_the_optimizer_copies_the_weights():
    state = _state_of(net())
    model = net().bfloat16()
    model.load_state_dict(state)
    _train_on(model, _Masters(model))


@clean
def target_that_is_loaded_and_follows_another():
    online, target = net(), net()
    target.load_state_dict(_state_of(net()))
    optimizer = torch.optim.SGD(online.parameters(), lr=0.05)
    for x, _ in data(6):
        optimizer.zero_grad()
        (online(x) - target(x).detach()).pow(2).mean().backward()
        optimizer.step()
        with torch.no_grad():
            for p, q in zip(target.parameters(), online.parameters(), strict=True):
                p.copy_(q)


class _Average:
    """A moving average of weights, in place or by new tensors."""

    def __init__(self, model, *, inplace):
        self.inplace = inplace
        self.shadow = {name: p.detach().clone() for name, p in model.named_parameters()}

    @torch.no_grad()
    def update(self, model):
        for name, p in model.named_parameters():
            if self.inplace:
                self.shadow[name].mul_(0.9).add_(p, alpha=0.1)
            else:
                self.shadow[name] = 0.9 * self.shadow[name] + 0.1 * p


def _train_averaged(model, average, steps=6):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for x, y in data(steps):
        optimizer.zero_grad()
        mse(model, x, y).backward()
        optimizer.step()
        average.update(model)


@buggy("GCS415")
def average_made_before_a_load():
    state = _state_of(net())
    model = net()
    average = _Average(model, inplace=True)
    model.load_state_dict(state)  # <- here
    _train_averaged(model, average)


@buggy("GCS415")
def average_of_new_tensors_made_before_a_load():
    state = _state_of(net())
    model = net()
    average = _Average(model, inplace=False)
    model.load_state_dict(state)  # <- here
    _train_averaged(model, average)


@buggy("GCS415")
def target_made_before_a_load():
    state = _state_of(net())
    model = net()
    target = deepcopy(model)
    model.load_state_dict(state)  # <- here
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for number, (x, _) in enumerate(data(8)):
        with torch.no_grad():
            expected = 1 + 0.9 * target(x)
        optimizer.zero_grad()
        mse(model, x, expected).backward()
        optimizer.step()
        if number % 3 == 2:
            target.load_state_dict(model.state_dict())


@clean
def average_made_after_a_load():
    state = _state_of(net())
    model = net()
    model.load_state_dict(state)
    _train_averaged(model, _Average(model, inplace=False))


@clean
def average_that_is_loaded_too():
    state = _state_of(net())
    model = net()
    average = _Average(model, inplace=True)
    model.load_state_dict(state)
    for name, value in state.items():
        average.shadow[name].copy_(value)
    _train_averaged(model, average)


@clean
def beginning_that_is_kept_over_a_load():
    state = _state_of(net())
    model = net()
    beginning = [p.detach().clone() for p in model.parameters()]
    model.load_state_dict(state)
    _train(model)
    torch.stack([(p - b).norm() for p, b in zip(model.parameters(), beginning, strict=True)]).sum()


@clean
def another_network_from_the_same_seed():
    state = _state_of(net())
    torch.manual_seed(1)
    model = net()
    torch.manual_seed(1)
    other = net()
    model.load_state_dict(state)
    _train(model)
    _train(other)


@clean
def target_loaded_as_well():
    state = _state_of(net())
    model = net()
    target = deepcopy(model)
    for each in (model, target):
        each.load_state_dict(state)
    _train(model)
    target.load_state_dict(model.state_dict())
    _train(model)


@clean
def average_that_is_swapped_in_and_out():
    model = net()
    average = _Average(model, inplace=True)
    for _ in range(3):
        _train_averaged(model, average, 3)
        weights = {name: p.detach().clone() for name, p in model.named_parameters()}
        model.load_state_dict(average.shadow)
        model.load_state_dict(weights)
