"""Training steps in forms of their own: correct ones are silent, their wrong kin is not."""

from __future__ import annotations

import pytest

from gradcheck_lint.engine import lint_source

_HEADER = """\
import torch
from torch import nn, optim
"""

_NET = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x):
        return self.norm(self.layer(x))

def fit(train_loader, val_loader, epochs):
    model = Net()
    optimizer = optim.SGD(model.parameters(), 0.1)
    for epoch in range(epochs):
        for x in train_loader:
            optimizer.zero_grad()
            model(x).mean().backward()
            optimizer.step()
        with torch.no_grad():
            for x in val_loader:
                print(model(x).mean().item())
"""

_CORRECT = {
    "701 layers without a mode of their own": _NET.replace("BatchNorm1d", "LayerNorm"),
    "701 the statistics of batch norm are taken anew": _NET.replace("x in val", "x in train"),
    "701 evaluation mode": _NET.replace(
        "        with torch", "        model.eval()\n        with torch"
    ).replace("        for x in train", "        model.train()\n        for x in train"),
    "307 a layer added before the optimizer is made": """
def train(make, loader):
    model = nn.Sequential(nn.Linear(4, 4))
    model.add_module("head", nn.Linear(4, 2))
    optimizer = optim.SGD(model.parameters(), 0.1)
    for x in loader:
        optimizer.zero_grad()
        model(x).mean().backward()
        optimizer.step()
""",
    "307 a layer with a group of its own": """
def train(make, loader):
    model = nn.Sequential(nn.Linear(4, 4))
    optimizer = optim.SGD(model.parameters(), 0.1)
    model.add_module("head", nn.Linear(4, 2))
    optimizer.add_param_group({"params": model.head.parameters()})
    for x in loader:
        optimizer.zero_grad()
        model(x).mean().backward()
        optimizer.step()
""",
    "302 the window is of the inner loop": """
def train(model, loader, optimizer, epochs, steps):
    for epoch in range(epochs):
        optimizer.zero_grad()
        for i, x in enumerate(loader):
            (model(x).mean() / steps).backward()
            if (i + 1) % steps == 0:
                optimizer.step()
                optimizer.zero_grad()
""",
    "302 the window is in a function": """
class Trainer:
    def epoch(self, loader, steps):
        self.count = 0
        for x in loader:
            (self.model(x).mean() / steps).backward()
            self.count += 1
            if self.count % steps == 0:
                self.optimizer.step()
                self.optimizer.zero_grad()

    def fit(self, loader, epochs):
        self.optimizer = optim.SGD(self.model.parameters(), 0.1)
        for epoch in range(epochs):
            self.optimizer.zero_grad()
            self.epoch(loader, 4)
""",
    "310 several optimizers": """
def step(loss, optimizers, scaler):
    scaler.scale(loss).backward()
    for optimizer in optimizers.values():
        scaler.unscale_(optimizer)
    for optimizer in optimizers.values():
        scaler.step(optimizer)
    scaler.update()
""",
    "310 several optimizers, each in one go": """
def step(loss, models):
    scaler = torch.amp.GradScaler("cuda")
    optimizers = [optim.SGD(model.parameters(), 0.1) for model in models]
    scaler.scale(loss).backward()
    for place in range(len(optimizers)):
        optimizer = optimizers[place]
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
    scaler.update()
""",
    "310 several optimizers by place": """
def step(loss, models):
    scaler = torch.amp.GradScaler("cuda")
    optimizers = [optim.SGD(model.parameters(), 0.1) for model in models]
    scaler.scale(loss).backward()
    place = 0
    while place < len(optimizers):
        scaler.unscale_(optimizers[place])
        scaler.step(optimizers[place])
        place += 1
    scaler.update()
""",
    "310 several optimizers in a method": """
class Trainer:
    def finish(self, optimizer):
        self.scaler.unscale_(optimizer)
        self.scaler.step(optimizer)

    def fit(self, loader, optimizers):
        for x in loader:
            for optimizer in optimizers:
                optimizer.zero_grad()
            self.scaler.scale(self.model(x).mean()).backward()
            for optimizer in optimizers:
                self.finish(optimizer)
            self.scaler.update()
""",
    "203 a step that is given the loss": """
from .base import with_backward

class Agent:
    def learn(self, x):
        value = self.critic(x)
        loss = value.mean() * 2
        self.alpha_optim.zero_grad()
        alpha_loss = -loss * 0.5
        alpha_loss.backward(retain_graph=True)
        self.alpha_optim.step()
        total = value.pow(2).mean() + loss
        self.critic_optim.step(total)
        return total.item()
""",
    "203 a model that is None until it is made": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def penalty(self, real, fake):
        mixed = 0.5 * real + 0.5 * fake
        return torch.autograd.grad(self(mixed).sum(), mixed, create_graph=True)[0].norm()

    def forward(self, x):
        return self.layer(x)

class Synthesizer:
    def __init__(self):
        self.generator = None

    def move(self, device):
        if self.generator is not None:
            self.generator.to(device)

    def fit(self, data):
        self.generator = Net()
        critic = Net()
        optimizer = optim.Adam([*critic.parameters(), *self.generator.parameters()])
        self.move("cpu")
        for real in data:
            fake = self.generator(torch.randn(3, 3))
            penalty = critic.penalty(real, fake)
            loss = critic(fake).mean() - critic(real).mean()
            optimizer.zero_grad()
            penalty.backward(retain_graph=True)
            loss.backward()
            optimizer.step()
""",
    "306 a schedule of somebody's own": """
from schedules import WarmUp

def prepare(model):
    optimizer = optim.SGD(model.parameters(), 0.1)
    scheduler = WarmUp(optimizer, steps=100)
    return optimizer, scheduler

def train(model, loader, optimizer, scheduler):
    for x in loader:
        optimizer.zero_grad()
        model(x).mean().backward()
        scheduler.step()
        optimizer.step()
""",
    "106 evaluation in a context of somebody's own": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 4)

    def infer_all(self, x, batches):
        y = torch.zeros(len(x), 4)
        with batches.pinned():
            for rows in batches:
                y[rows] = self.layer(x[rows])
        return y

def evaluate(model, x, batches):
    with torch.no_grad():
        return model.infer_all(x, batches)
""",
    "310 two scalers, each with its own": """
def train(G, D, loader, opt_g, opt_d):
    scaler_g = torch.amp.GradScaler("cuda")
    scaler_d = torch.amp.GradScaler("cuda")
    for x in loader:
        opt_d.zero_grad()
        opt_g.zero_grad()
        scaler_d.scale(D(x).mean()).backward()
        scaler_g.scale(D(G(x)).mean()).backward()
        scaler_d.step(opt_d)
        scaler_g.step(opt_g)
        scaler_d.update()
        scaler_g.update()
""",
    "201 a buffer of any arguments that is emptied": """
from collections import namedtuple
Transition = namedtuple("Transition", ("state", "log_prob"))

class Memory:
    def __init__(self):
        self.rows = []

    def push(self, *args):
        self.rows.append(Transition(*args))

    def clear(self):
        self.rows.clear()

def learn(policy, optimizer, states):
    memory = Memory()
    for state in states:
        for t in range(10):
            memory.push(state, policy(state).log_softmax(-1)[0])
        loss = -torch.stack([row.log_prob for row in memory.rows]).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        memory.clear()
""",
    "201 a buffer of any arguments that are numbers": """
from collections import namedtuple
Transition = namedtuple("Transition", ("state", "value"))

class Memory:
    def __init__(self):
        self.rows = []

    def push(self, *args, **more):
        self.rows.append(Transition(*[each.detach() for each in args]))
        self.rows.append(more)

def learn(net, optimizer, states):
    memory = Memory()
    for state in states:
        loss = net(state).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        memory.push(state, loss, value=loss.item())
""",
}


@pytest.mark.parametrize("source", _CORRECT.values(), ids=_CORRECT)
def test_correct_code_is_silent(source):
    assert lint_source((_HEADER + source).encode(), "sample.py") == ()


_WRONG = {
    "701 a validation loop inside the loop over the epochs": (_NET, ["GCS701"]),
    "307 a layer added after the optimizer was made": (
        """
def train(make, loader):
    model = nn.Sequential(nn.Linear(4, 4))
    optimizer = optim.SGD(model.parameters(), 0.1)
    model.add_module("head", nn.Linear(4, 2))
    for x in loader:
        optimizer.zero_grad()
        model(x).mean().backward()
        optimizer.step()
""",
        ["GCS307"],
    ),
    "302 zeroed for each micro-batch": (
        """
def train(model, loader, optimizer, epochs, steps):
    for epoch in range(epochs):
        for i, x in enumerate(loader):
            optimizer.zero_grad()
            (model(x).mean() / steps).backward()
            if (i + 1) % steps == 0:
                optimizer.step()
""",
        ["GCS302"],
    ),
    "310 one optimizer in a loop over something else": (
        """
def step(loss, model):
    scaler = torch.amp.GradScaler("cuda")
    optimizer = optim.SGD(model.parameters(), 0.1)
    scaler.scale(loss).backward()
    for group in optimizer.param_groups:
        scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
""",
        ["GCS310"],
    ),
    "310 each of several is unscaled twice": (
        """
def step(loader, models, optimizers):
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        for model, optimizer in zip(models, optimizers):
            optimizer.zero_grad()
            scaler.scale(model(x).mean()).backward()
            scaler.unscale_(optimizer)
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
        scaler.update()
""",
        ["GCS310"],
    ),
    "310 no update in a method that is given its optimizer": (
        """
class Trainer:
    def __init__(self, model):
        self.model = model
        self.scaler = torch.amp.GradScaler("cuda")
        self.optimizer = optim.SGD(model.parameters(), 0.1)

    def finish(self, optimizer):
        self.scaler.unscale_(optimizer)
        self.scaler.step(optimizer)

    def fit(self, loader):
        for x in loader:
            self.optimizer.zero_grad()
            self.scaler.scale(self.model(x).mean()).backward()
            self.finish(self.optimizer)
""",
        ["GCS310"],
    ),
    "203 a step that is given something else": (
        """
class Agent:
    def learn(self, x, closure):
        loss = self.critic(x).mean()
        self.optimizer.zero_grad()
        loss.backward(retain_graph=True)
        self.optimizer.step(closure)
        return loss.item()
""",
        ["GCS203"],
    ),
    "306 a schedule of transformers": (
        """
from transformers import get_linear_schedule_with_warmup

def train(model, loader):
    optimizer = optim.SGD(model.parameters(), 0.1)
    scheduler = get_linear_schedule_with_warmup(optimizer, 3, 30)
    for x in loader:
        optimizer.zero_grad()
        model(x).mean().backward()
        scheduler.step()
        optimizer.step()
""",
        ["GCS306"],
    ),
    "106 training in a context of somebody's own": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 4)

    def run_all(self, x, batches):
        y = torch.zeros(len(x), 4)
        with batches.pinned():
            for rows in batches:
                y[rows] = self.layer(x[rows])
        return y

def train(model, x, batches):
    return model.run_all(x, batches)
""",
        ["GCS106"],
    ),
    "201 a model that is None until it is made": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x):
        return self.layer(x)

class Trainer:
    def __init__(self):
        self.losses = []
        self.net = None

    def move(self):
        self.net.cpu()

    def fit(self, data, optimizer):
        self.net = Net()
        self.move()
        for x in data:
            optimizer.zero_grad()
            loss = self.net(x).mean()
            loss.backward()
            optimizer.step()
            self.losses.append(loss)
""",
        ["GCS201"],
    ),
    "310 another scaler makes the step": (
        """
def train(model, loader, optimizer):
    first = torch.amp.GradScaler("cuda")
    second = torch.amp.GradScaler("cuda")
    for x in loader:
        optimizer.zero_grad()
        first.scale(model(x).mean()).backward()
        second.step(optimizer)
        second.update()
""",
        ["GCS310"],
    ),
    "310 the scaler of the other player makes the step": (
        """
def train(G, D, loader, opt_g, opt_d):
    scaler_g = torch.amp.GradScaler("cuda")
    scaler_d = torch.amp.GradScaler("cuda")
    for x in loader:
        opt_d.zero_grad()
        scaler_d.scale(D(x).mean()).backward()
        scaler_d.step(opt_d)
        scaler_d.update()
        opt_g.zero_grad()
        opt_d.zero_grad()
        scaler_g.scale(D(G(x)).mean()).backward()
        scaler_d.step(opt_g)
        scaler_g.update()
""",
        ["GCS310"],
    ),
    "201 a buffer of any arguments": (
        """
from collections import namedtuple
Transition = namedtuple("Transition", ("state", "log_prob"))

class Memory:
    def __init__(self):
        self.rows = []

    def push(self, *args):
        self.rows.append(Transition(*args))

    def note(self, **values):
        self.rows.append(values)

def learn(policy, optimizer, states):
    memory = Memory()
    kept = []
    for state in states:
        loss = policy(state).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        memory.push(state, loss)
        memory.note(loss=loss)
        kept.append(Transition(state, log_prob=loss))
""",
        ["GCS201"] * 3,
    ),
}


@pytest.mark.parametrize(("source", "codes"), _WRONG.values(), ids=_WRONG)
def test_wrong_kin_is_found(source, codes):
    found = lint_source((_HEADER + source).encode(), "sample.py")
    assert [finding.code for finding in found] == codes
