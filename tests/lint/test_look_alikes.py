from __future__ import annotations

import pytest

from gradcheck_lint.engine import lint_source

_HEADER = """\
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import optim
"""

_CORRECT = {
    "301 method zero": """
class Agent:
    def __init__(self, net):
        self.net = net
        self.opt = optim.Adam(net.parameters())
    def _clear(self):
        for g in self.opt.param_groups:
            for p in g["params"]:
                p.grad = None
    def learn(self, data):
        for x in data:
            self._clear()
            self.net(x).sum().backward()
            self.opt.step()
""",
    "set_to_none scaler": """
def f(model, data, opt, scaler):
    for i, x in enumerate(data):
        with torch.autocast("cuda"):
            l = model(x).mean()
        scaler.scale(l).backward()
        scaler.unscale_(opt)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.)
        scaler.step(opt)
        scaler.update()
        opt.zero_grad(set_to_none=True)
""",
    "scaler that is switched off": """
def f(model, data, opt):
    scaler = torch.amp.GradScaler("cuda", enabled=False)
    for x in data:
        opt.zero_grad()
        scaler.scale(model(x).mean()).backward()
        scaler.unscale_(opt)
        scaler.unscale_(opt)
        opt.step()
    for x in data:
        opt.zero_grad()
        scaler.scale(model(x).mean()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.)
        scaler.step(opt)

class Trainer:
    def __init__(self, model, opt):
        self.model, self.opt = model, opt
        self.scaler = torch.GradScaler(device="cpu", enabled=False)

    def fit(self, data):
        for x in data:
            self.opt.zero_grad()
            self.scaler.scale(self.model(x).mean()).backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.)
            self.opt.step()
""",
    "zero in except/if": """
def f(model, data, opt):
    for i, x in enumerate(data):
        if i % 4 == 0:
            opt.zero_grad()
        model(x).mean().backward()
        opt.step()
""",
    "model.zero_grad": """
def f(model, data, opt):
    for i, x in enumerate(data):
        model.zero_grad()
        model(x).mean().backward()
        opt.step()
""",
    "range1": """
def f(model, x, opt):
    for _ in range(1):
        model(x).mean().backward()
        opt.step()
""",
    "return after": """
def f(model, data, opt):
    for x in data:
        if x is None:
            continue
        model(x).mean().backward()
        opt.step()
        return x
""",
    "raise after": """
def f(model, data, opt):
    for x in data:
        model(x).mean().backward()
        opt.step()
        raise StopIteration
""",
    "lightning": """
import pytorch_lightning as pl
class M(pl.LightningModule):
    def training_step(self, b, i):
        opt = self.optimizers()
        for x in b:
            self(x).sum().backward()
            opt.step()
""",
    "accelerate": """
from accelerate import Accelerator, DeepSpeedPlugin
accelerator = Accelerator(deepspeed_plugin=DeepSpeedPlugin())
def f(model, data, optimizer):
    for x in data:
        accelerator.backward(model(x).mean())
        optimizer.step()
""",
    "fabric": """
from lightning.fabric import Fabric
def f(fabric, model, data, optimizer):
    for i, x in enumerate(data):
        with fabric.no_backward_sync(model, enabled=i % 4 != 3):
            fabric.backward(model(x).mean())
        if i % 4 == 3:
            fabric.clip_gradients(model, optimizer, max_norm=1.0)
            optimizer.step()
            optimizer.zero_grad()
""",
    "autograd.grad": """
def f(w, data, opt):
    for x in data:
        g, = torch.autograd.grad((w * x).sum(), [w])
        with torch.no_grad():
            w -= g
""",
    "assign grads from autograd.grad": """
def f(w, data, opt):
    for x in data:
        g = torch.autograd.grad((w * x).sum(), [w])
        w.grad = g[0]
        opt.step()
""",
    "dist_optim": """
from torch.distributed.optim import DistributedOptimizer
import torch.distributed.autograd as da
def f(model, data):
    opt = DistributedOptimizer(optim.SGD, model.rrefs)
    for x in data:
        with da.context() as cid:
            l = model(x).sum()
            da.backward(cid, [l])
            opt.step(cid)
""",
    "optimizer in backward hook": """
def f(model, data):
    opts = {p: optim.SGD([p], .1) for p in model.parameters()}
    def hook(p):
        opts[p].step()
        opts[p].zero_grad()
    for p in model.parameters():
        p.register_post_accumulate_grad_hook(hook)
    for x in data:
        model(x).sum().backward()
""",
    "schedulefree wrapper class": """
class MyOpt:
    def __init__(self, o): self.o = o
    def step(self):
        self.o.step()
        self.o.zero_grad()
def f(model, data):
    optimizer = MyOpt(optim.SGD(model.parameters(), .1))
    for x in data:
        model(x).sum().backward()
        optimizer.step()
""",
    "201 detached at source": """
def f(model, data, opt):
    losses = []
    for x in data:
        opt.zero_grad()
        loss = model(x).mean()
        loss.backward()
        opt.step()
        losses.append(loss.item())
        losses.append(loss.detach().cpu().numpy())
        losses.append(loss.data)
        losses.append(float(loss) / 2)
        losses.append(loss.cpu().data.numpy())
    return sum(losses) / len(losses)
""",
    "201 no_grad accumulate": """
def f(model, data, opt):
    total = torch.zeros(())
    for x in data:
        opt.zero_grad()
        loss = model(x).mean()
        loss.backward()
        opt.step()
        with torch.no_grad():
            total += loss
""",
    "201 print": """
def f(model, data, opt):
    for i, x in enumerate(data):
        opt.zero_grad()
        loss = model(x).mean()
        loss.backward()
        opt.step()
        if i % 10 == 0:
            print(f"{i} {loss}")
    return loss
""",
    "201 multi task sum": """
def f(models, data, opt):
    total_log = 0.0
    for x in data:
        opt.zero_grad()
        total = 0
        for m in models:
            loss = m(x).mean()
            total += loss
            total_log += loss.item()
        total.backward()
        opt.step()
""",
    "201 deque": """
from collections import deque
def f(model, data, opt):
    recent = deque(maxlen=10)
    for x in data:
        opt.zero_grad()
        loss = model(x).mean()
        loss.backward()
        opt.step()
        recent.append(loss)
""",
    "201 list in loop reset": """
def f(model, data, opt):
    buf = []
    for i, x in enumerate(data):
        opt.zero_grad()
        loss = model(x).mean()
        loss.backward()
        opt.step()
        buf.append(loss.detach())
        if len(buf) > 10:
            buf.clear()
""",
    "201 closure loss": """
def f(model, x, opt):
    history = []
    def closure():
        opt.zero_grad()
        loss = model(x).mean()
        loss.backward()
        return loss
    for _ in range(10):
        loss = opt.step(closure)
        history.append(loss.item())
""",
    "201 retain grad penalty": """
def f(model, data, opt):
    terms = []
    for x in data:
        l = model(x).mean()
        l.backward(retain_graph=True)
        terms.append(l)
    total = sum(terms)
    total.backward()
""",
    "101 misc": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.zeros(3))
        self.reset_parameters()
        self.steps = 0
        self.items = []
    def reset_parameters(self):
        nn.init.uniform_(self.a, -1, 1)
        self.a.data.fill_(1)
        with torch.no_grad():
            self.a.fill_(1)
            self.a += 1
            self.a[0] = 2
    @torch.no_grad()
    def ema(self, other):
        for p, q in zip(self.parameters(), other.parameters()):
            p.mul_(0.9).add_(q, alpha=0.1)
    @torch.inference_mode()
    def clip(self):
        self.a.clamp_(0, 1)
    def forward(self, x):
        self.steps += 1
        self.items += [1]
        out = self.a * x
        out += 1
        out[0] = 3
        buf = torch.zeros(3)
        buf[0] = self.a.sum()
        buf += self.a
        return out.relu_()
""",
    "101 with mixed": """
def f(flag):
    w = torch.randn(3, requires_grad=flag)
    w += 1
    v = torch.randn(3, requires_grad=True)
    with torch.set_grad_enabled(flag):
        v += 1
    with torch.set_grad_enabled(False):
        v += 1
    with torch.no_grad():
        with helper():
            pass
        v.add_(1)
    prev = torch.is_grad_enabled()
    try:
        v += 1
    except RuntimeError:
        pass
    v.grad = None
    v.requires_grad_(True)
    v.retain_grad()
    v.register_hook(lambda g: g.mul_(2))
    v.detach_()
    v += 1
""",
    "101 if": """
def f(train):
    if train:
        w = torch.randn(3, requires_grad=True)
    else:
        w = torch.randn(3)
    w += 1
    for i in range(3):
        u = torch.randn(3, requires_grad=True)
        u = u * 2
        u += 1
""",
    "101 fgsm": """
def attack(model, x, eps):
    x = x.clone().detach()
    x.requires_grad = True
    model(x).sum().backward()
    adv = x + eps * x.grad.sign()
    adv.clamp_(0, 1)
    x = x.detach()
    x += eps
    delta = torch.zeros_like(x, requires_grad=True)
    delta.data = delta.data + 1
    delta.data.clamp_(-eps, eps)
    delta.grad.zero_()
    return adv
""",
    "101 Function": """
class Fn(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        w = torch.ones(3, requires_grad=True)
        w += 1
        return x
""",
    "101 opt group": """
class SGD(optim.Optimizer):
    @torch.no_grad()
    def step(self, closure=None):
        for g in self.param_groups:
            for p in g["params"]:
                p.add_(p.grad, alpha=-g["lr"])
def sgd(params, lr):
    for p in params:
        p -= lr * p.grad
with torch.no_grad():
    sgd([torch.ones(2, requires_grad=True)], 1)
""",
    "101 freeze": """
model = nn.Linear(2, 2)
for p in model.parameters():
    p.requires_grad_(False)
for p in model.parameters():
    p.mul_(2)
""",
    "101 del/rebinding": """
w = torch.randn(3, requires_grad=True)
w = w.detach()
w += 1
a, b = torch.zeros(2), torch.ones(2, requires_grad=True)
a += b
a, b = b, a
b += 1
""",
    "101 exitstack": """
from contextlib import ExitStack
def f():
    w = torch.ones(2, requires_grad=True)
    with ExitStack() as s:
        s.enter_context(torch.no_grad())
        w += 1
""",
    "101 no_grad as fn wrapper": """
def f():
    w = torch.ones(2, requires_grad=True)
    g = torch.no_grad()
    g.__enter__()
    w += 1
""",
    "101 apply": """
def init(m):
    if isinstance(m, nn.Linear):
        m.weight.normal_(0, 1)
        torch.nn.init.zeros_(m.bias)
net = nn.Sequential(nn.Linear(2, 2))
with torch.no_grad():
    net.apply(init)
    net[0].weight.mul_(2)
""",
}


@pytest.mark.parametrize("source", _CORRECT.values(), ids=_CORRECT)
def test_correct_code_is_silent(source):
    assert lint_source((_HEADER + source).encode(), "sample.py") == ()
