"""Correct training programs that look, in the way that they are written, like mistakes."""

from __future__ import annotations

import pytest

from gradcheck_lint.engine import lint_source

_HEADER = "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n"

_CORRECT = {
    "a dictionary that somebody else resets": """
from tools import reset

def train(state, loader):
    for x in loader:
        reset(state)
        state["model"](x).mean().backward()
        state["opt"].step()
""",
    "an object that somebody else resets": """
from tools import reset

def train(run, loader):
    for x in loader:
        reset(run)
        run.model(x).mean().backward()
        run.optimizer.step()
""",
    "entries that change": """
def train(loader, make):
    state = {"opt": None, "loss": 0.0}
    state.update(make())
    for x in loader:
        state["opt"].zero_grad()
        loss = state["model"](x).mean()
        loss.backward()
        state["opt"].step()
        state["loss"] = loss
        state["loss"] = state["loss"].item()
        state["total"] = state.get("total", 0.0) + state["loss"]
""",
    "a scaler's window": """
def train(model, loader, optimizer, scheduler, accumulate):
    scaler = torch.amp.GradScaler("cuda")
    for i, x in enumerate(loader):
        is_last = (i + 1) % accumulate == 0 or i + 1 == len(loader)
        scaler.scale(model(x).mean() / accumulate).backward()
        if is_last:
            scaler.unscale_(optimizer)
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            if torch.isfinite(norm):
                scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            scheduler.step()
""",
    "a guarded step after unscaling": """
def train(model, loader, optimizer):
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        optimizer.zero_grad()
        scaler.scale(model(x).mean()).backward()
        scaler.unscale_(optimizer)
        if all(torch.isfinite(p.grad).all() for p in model.parameters()):
            optimizer.step()
        scaler.update()
""",
    "one scaler under two names": """
class Pair:
    def __init__(self, a, b):
        self.opt_a = torch.optim.Adam(a.parameters())
        self.opt_b = torch.optim.Adam(b.parameters())
        self.scaler = torch.amp.GradScaler("cuda")
        self.scaler_b = self.scaler

    def fit(self, loader):
        for x in loader:
            self.opt_a.zero_grad()
            self.scaler.scale(self.a(x).mean()).backward()
            self.scaler.step(self.opt_a)
            self.opt_b.zero_grad()
            self.scaler_b.scale(self.b(x).mean()).backward()
            self.scaler_b.step(self.opt_b)
            self.scaler.update()
""",
    "Accelerate": """
from accelerate import Accelerator

def train(accelerator, model, loader, optimizer, scheduler, held_out):
    total = 0
    for x in loader:
        model.train()
        with accelerator.accumulate(model):
            loss = model(x).mean()
            total += loss.detach()
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        model.eval()
        with torch.no_grad():
            print(accelerator.gather(model(held_out)).mean())
""",
    "Lightning": """
import lightning as L
from collections import deque

class Lit(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(3, 1)
        self.losses, self.recent, self.parts = [], deque(maxlen=10), []

    def training_step(self, batch, index):
        x, y = batch
        loss = F.mse_loss(self.net(x), y)
        self.losses.append(loss.detach())
        self.recent.append(loss)
        self.parts = []
        self.parts.append(loss)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, index):
        self.losses.append(self.net(batch).mean())
""",
    "Lightning's manual optimization": """
import lightning as L

class Lit(L.LightningModule):
    def training_step(self, batch, index):
        opt = self.optimizers()
        loss = self.net(batch).mean() / 4
        self.manual_backward(loss)
        if (index + 1) % 4 == 0:
            self.clip_gradients(opt, gradient_clip_val=1.0)
            opt.step()
            opt.zero_grad()
""",
    "half steps that zero": """
from sam import SAM

def train(model, loader):
    optimizer = SAM(model.parameters(), torch.optim.SGD)
    for x, y in loader:
        F.cross_entropy(model(x), y).backward()
        optimizer.first_step(zero_grad=True)
        F.cross_entropy(model(x), y).backward()
        optimizer.second_step(zero_grad=True)

def by_hand(model, loader):
    optimizer = SAM(model.parameters(), torch.optim.SGD)
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.first_step()
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.second_step()
""",
    "windows that begin with a reset": """
def counted(model, loader, optimizer):
    for i, x in enumerate(loader):
        if i % 4 == 0:
            optimizer.zero_grad()
        model(x).mean().backward()
        if i % 4 == 3:
            optimizer.step()

def nested(model, batches, optimizer):
    for batch in batches:
        for i, x in enumerate(batch):
            if i == 0:
                optimizer.zero_grad()
            model(x).mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
""",
    "gradients that are read, before a training loop": """
def fisher(model, data, loader, optimizer):
    found = [torch.zeros_like(p) for p in model.parameters()]
    for x in data:
        optimizer.zero_grad()
        model(x).mean().backward()
        for f, p in zip(found, model.parameters()):
            f += p.grad ** 2
    for x in loader:
        optimizer.zero_grad()
        model(x).mean().backward()
        optimizer.step()
    return found
""",
    "training with frozen statistics": """
class Tuner:
    def step(self, x):
        self.optimizer.zero_grad()
        loss = self.model(x).mean()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def tune(self, loader):
        self.model.eval()
        return sum(self.step(x) for x in loader)
""",
    "optimizers of a comprehension": """
def train(loader):
    nets = {"g": nn.Linear(3, 3), "d": nn.Linear(3, 1)}
    opts = {name: torch.optim.Adam(net.parameters()) for name, net in nets.items()}
    for x in loader:
        for opt in opts.values():
            opt.zero_grad()
        nets["d"](nets["g"](x)).mean().backward()
        opts["g"].step()
        opts["d"].step()
""",
    "the reset of what is wrapped": """
def train(make, loader):
    model = make().to("cuda")
    net = nn.DataParallel(model)
    opt = torch.optim.Adam(net.parameters())
    for x in loader:
        model.zero_grad()
        net(x).mean().backward()
        opt.step()
""",
    "a step as a context": """
import contextlib

@contextlib.contextmanager
def stepping(optimizer):
    optimizer.zero_grad()
    yield
    optimizer.step()

def train(model, loader, optimizer):
    for x in loader:
        with stepping(optimizer):
            model(x).mean().backward()
""",
    "the reset of a whole, or of what shares a part": """
def whole(loader, Part, Whole):
    part = Part()
    model = Whole(part)
    optimizer = torch.optim.Adam(part.parameters())
    for x in loader:
        model.zero_grad()
        part(x).mean().backward()
        optimizer.step()

def shared(loader, Trunk, Head):
    trunk = Trunk()
    a, b = Head(trunk), Head(trunk)
    optimizer = torch.optim.Adam(a.parameters())
    for x in loader:
        b.zero_grad()
        a(x).mean().backward()
        optimizer.step()
""",
    "a helper that records for itself": """
def gradient(model, x):
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        return model(x).sum()

@torch.no_grad()
def guide(model, x):
    loss = gradient(model, x)
    loss.backward()
""",
    "parts that helpers return": """
def losses(model, x, y):
    out = model(x)
    return F.mse_loss(out, y), out.detach()

def train(model, loader, optimizer):
    outs = []
    for x, y in loader:
        optimizer.zero_grad()
        loss, out = losses(model, x, y)
        loss.backward()
        optimizer.step()
        outs.append(out)
""",
    "what comes with a loss": """
from losses import Criterion

def train(model, loader, optimizer):
    criterion = Criterion(model)
    mean = torch.zeros(3)
    for i, (x, y) in enumerate(loader):
        loss, parts = criterion(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = (mean * i + parts) / (i + 1)
""",
    "a number among the operands": """
class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, beta):
        ctx.save_for_backward(x)
        ctx.beta = beta
        return x * torch.sigmoid(beta * x)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(ctx.beta * x)
        return g * s * (1 + ctx.beta * x * (1 - s)), None
""",
}


@pytest.mark.parametrize("name", _CORRECT)
def test_look_alike_is_silent(name: str):
    assert lint_source((_HEADER + _CORRECT[name]).encode(), "x.py") == ()
