"""Mistakes in the ways that training programs are written."""

from __future__ import annotations

import re

import pytest

from gradcheck_lint.engine import lint_source

_HEADER = "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n"
_MARK = re.compile(r"# !(GCS\d+)( w)?")

_MISTAKES = {
    "state in a dictionary": """
def make(args):
    model = nn.Linear(3, 1)
    opt = torch.optim.Adam(model.parameters())
    return {"model": model, "opt": opt, "sched": torch.optim.lr_scheduler.StepLR(opt, 3), "n": 0}

def epoch(state, loader):
    total = 0.0
    for x in loader:
        loss = state["model"](x).mean()
        loss.backward()
        state["sched"].step()  # !GCS306 w
        state["opt"].step()  # !GCS301
        state["n"] += 1
        total += loss  # !GCS201
    return total

def main(args, loader):
    state = make(args)
    for _ in range(3):
        epoch(state, loader)
""",
    "a dictionary that is filled step by step": """
def train(model, loader):
    state = {}
    state["opt"] = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in loader:
        loss = model(x).mean()
        loss.backward()
        state["opt"].zero_grad()  # !GCS302
        state['opt'].step()
""",
    "places of one object in two functions": """
def one(state, x):
    state["net"].zero_grad()
    state["net"](x).mean().backward()
    state["opt"].step()

def check(state, loader):
    state["net"].eval()  # !GCS702 w
    with torch.no_grad():
        return sum(state["net"](x).sum().item() for x in loader)

def main(state, loader, held_out):
    state["net"].train()
    for _ in range(3):
        for x in loader:
            one(state, x)
        print(check(state, held_out))
""",
    "a method that leaves the model in eval mode": """
class Trainer:
    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.Adam(model.parameters())
        self.trace, self.best = [], None

    def compute(self, batch):
        x, y = batch
        return F.cross_entropy(self.model(x), y)

    def step(self, batch):
        loss = self.compute(batch)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.trace.append(loss)  # !GCS201
        return loss

    def validate(self, loader):
        self.model.eval()  # !GCS702 w
        return sum(self.compute(batch).item() for batch in loader)  # !GCS204 w

    def fit(self, loader, held_out):
        self.model.train()
        for _ in range(3):
            losses = []
            for batch in loader:
                losses.append(self.step(batch))  # !GCS201
            print(self.validate(held_out))
""",
    "a helper's loss, made without recording": """
def compute(model, batch):
    x, y = batch
    return F.cross_entropy(model(x), y)

def train(model, loader, optimizer):
    for batch in loader:
        optimizer.zero_grad()
        with torch.no_grad():
            loss = compute(model, batch)  # !GCS402
        loss.backward()
        optimizer.step()
""",
    "a scaler in a window": """
def no_update(model, loader, optimizer):
    scaler = torch.amp.GradScaler("cuda")
    for i, x in enumerate(loader):
        scaler.scale(model(x).mean()).backward()
        if i % 4 == 3:
            scaler.step(optimizer)  # !GCS310
            optimizer.zero_grad()

def update_each(model, loader, optimizer):
    scaler = torch.amp.GradScaler("cuda")
    for i, x in enumerate(loader):
        scaler.scale(model(x).mean()).backward()
        if i % 4 == 3:
            scaler.step(optimizer)
            optimizer.zero_grad()
        scaler.update()  # !GCS310 w

def unscale_each(model, loader, optimizer):
    scaler = torch.amp.GradScaler("cuda")
    for i, x in enumerate(loader):
        scaler.scale(model(x).mean()).backward()
        scaler.unscale_(optimizer)  # !GCS310 w
        if i % 4 == 3:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()

def update_first(model, loader, optimizer):
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        optimizer.zero_grad()
        scaler.scale(model(x).mean()).backward()
        scaler.update()  # !GCS310
        scaler.step(optimizer)

def unchecked(model, loader, optimizer):
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        optimizer.zero_grad()
        scaler.scale(model(x).mean()).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()  # !GCS310 w
        scaler.update()
""",
    "the other of two scalers": """
class Pair:
    def __init__(self, a, b):
        self.opt_a = torch.optim.Adam(a.parameters())
        self.opt_b = torch.optim.Adam(b.parameters())
        self.scaler_a = torch.amp.GradScaler("cuda")
        self.scaler_b = torch.amp.GradScaler("cuda")

    def step(self, x):
        self.opt_a.zero_grad()
        self.scaler_a.scale(self.a(x).mean()).backward()
        self.scaler_a.step(self.opt_a)
        self.scaler_a.update()
        self.opt_b.zero_grad()
        self.scaler_b.scale(self.b(x).mean()).backward()
        self.scaler_b.step(self.opt_b)  # !GCS310

    def fit(self, loader):
        for x in loader:
            self.step(x)
""",
    "Accelerate": """
from accelerate import Accelerator

def train(accelerator, model, loader, optimizer, held_out):
    total = 0.0
    for x in loader:
        with accelerator.accumulate(model):
            loss = model(x).mean()
            total += loss  # !GCS201
            accelerator.backward(loss)
            optimizer.step()  # !GCS301 w
            accelerator.clip_grad_norm_(model.parameters(), 1.0)  # !GCS304
            accelerator.log({"loss": loss.item()})
""",
    "Fabric with a named window": """
from lightning.fabric import Fabric

def train(fabric, model, loader, optimizer):
    for i, x in enumerate(loader):
        waits = (i + 1) % 8 != 0
        optimizer.zero_grad()  # !GCS302 w
        with fabric.no_backward_sync(model, enabled=waits):
            fabric.backward(model(x).mean() / 8)
        if not waits:
            fabric.clip_gradients(model, optimizer, max_norm=1.0)
            optimizer.step()
""",
    "Lightning": """
import lightning as L

class Lit(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(3, 1)
        self.losses, self.total = [], 0.0

    def training_step(self, batch, index):
        x, y = batch
        loss = F.mse_loss(self.net(x), y)
        self.losses.append({"loss": loss, "n": len(x)})  # !GCS201
        self.total += loss  # !GCS201
        return {"loss": loss}

class Cut(L.LightningModule):
    def training_step(self, batch, index):
        loss = self.net(batch).mean()
        return torch.tensor(loss.item(), requires_grad=True)  # !GCS405
""",
    "Lightning's manual optimization": """
import pytorch_lightning as pl

class Lit(pl.LightningModule):
    def training_step(self, batch, index):
        opt_a, opt_b = self.optimizers()
        self.toggle_optimizer(opt_a)
        self.manual_backward(self.a(batch).mean())
        opt_a.zero_grad()  # !GCS302
        opt_a.step()
        self.untoggle_optimizer(opt_a)
        self.manual_backward(self.b(batch).mean())
        opt_b.step()  # !GCS301 w
""",
    "a loss that transformers differentiates": """
from transformers import Trainer

class Distiller(Trainer):
    def __init__(self, *args):
        super().__init__(*args)
        self.losses = []

    def compute_loss(self, model, inputs, return_outputs=False):
        with torch.no_grad():
            out = model(**inputs)  # !GCS402
        loss = out.mean()
        return (loss, out) if return_outputs else loss
""",
    "sharpness-aware half steps": """
from sam import SAM

def train(model, loader):
    optimizer = SAM(model.parameters(), torch.optim.SGD)
    for x, y in loader:
        F.cross_entropy(model(x), y).backward()
        optimizer.first_step()
        F.cross_entropy(model(x), y).backward()
        optimizer.second_step(zero_grad=True)  # !GCS301 w
""",
    "two steps on one reset": """
def train(model, loader, optimizer):
    for x, y in loader:
        optimizer.zero_grad()
        model(x).mean().backward()
        optimizer.step()
        model(y).mean().backward()
        optimizer.step()  # !GCS301
""",
    "losses of a closure": """
def fit(model, x, y):
    optimizer = torch.optim.LBFGS(model.parameters())
    history = []
    for _ in range(20):
        def closure():
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            loss.backward()
            history.append(loss)  # !GCS201
            return loss
        optimizer.step(closure)
""",
    "the reset of another model": """
def train(loader, device, Generator, Critic):
    generator = Generator(8).to(device)
    critic = Critic().to(device)
    opt_g = torch.optim.Adam(generator.parameters())
    opt_c = torch.optim.Adam(critic.parameters())
    for x in loader:
        critic(x).mean().backward()
        opt_c.step()  # !GCS301
        generator.zero_grad()
        critic(generator(x)).mean().backward()
        opt_g.step()
""",
    "what an average and a counter are handed": """
def train(run, loader):
    for x in loader:
        loss = run.model(x).mean()
        loss.backward()
        run.optimizer.step()  # !GCS301
        run.ema.update(run.model)
        run.writer.add_scalar("loss", loss.item(), run.step)
""",
    "half of a state": """
def train(cell, loader, optimizer, state):
    for x in loader:
        h, c = state
        state = (h.detach(), c)
        out, state = cell(x, state)  # !GCS202
        optimizer.zero_grad()
        out.mean().backward()
        optimizer.step()
""",
    "a coroutine": """
class Worker:
    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.losses = []

    async def one(self, x):
        loss = self.model(x).mean()
        loss.backward()
        self.optimizer.step()  # !GCS301
        return loss

    async def run(self, queue):
        async for x in queue:
            self.losses.append(await self.one(x))  # !GCS201
""",
    "a context of this file": """
import contextlib

@contextlib.contextmanager
def timed(name):
    yield

def train(model, loader, optimizer):
    context = torch.autocast("cuda")
    total = 0.0
    for x in loader:
        optimizer.zero_grad()
        with timed("step"), context:
            loss = model(x).mean()
            total += loss  # !GCS201
        loss.backward()
        optimizer.step()
""",
    "optimizers that a function makes, by name": """
def build(args):
    a, b = nn.Linear(3, 5), nn.Linear(5, 1)
    opts = {
        "first": torch.optim.Adam(a.parameters(), lr=args.lr),
        "second": torch.optim.Adam(b.parameters(), lr=args.lr),
    }
    return a, b, opts

def train(args, loader):
    a, b, opts = build(args)
    for x in loader:
        a(x).mean().backward()
        opts["first"].step()  # !GCS301
        opts["second"].zero_grad()
        opts["second"].step()  # !GCS303
        b(a(x)).mean().backward()
""",
    "micro-batches in a loop of their own": """
def train(model, batches, optimizer):
    for batch in batches:
        for x in batch:
            optimizer.zero_grad()  # !GCS302 w
            model(x).mean().backward()
        optimizer.step()

def clip(model, batches, optimizer):
    for batch in batches:
        optimizer.zero_grad()
        for x in batch:
            model(x).mean().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # !GCS304 w
        optimizer.step()
""",
    "a gradient that is not returned": """
class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        gx = gw = None
        if ctx.needs_input_grad[0]:
            gx = g * w
        if ctx.needs_input_grad[1]:  # !GCS508
            gw = g * x
        return gx, None
""",
}


@pytest.mark.parametrize("name", _MISTAKES)
def test_mistake_is_found_where_it_is(name: str):
    source = _HEADER + _MISTAKES[name]
    expected = [
        (number, mark[1], bool(mark[2]))
        for number, line in enumerate(source.splitlines(), 1)
        if (mark := _MARK.search(line))
    ]
    assert expected
    found = [
        (finding.location.line, finding.code, finding.severity.value == "warning")
        for finding in lint_source(source.encode(), "x.py")
        if finding.location is not None
    ]
    assert found == expected
