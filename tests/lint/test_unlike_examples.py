"""Mistakes as people make them, unlike the examples of the rules."""

from __future__ import annotations

import pytest

from gradcheck_lint.engine import lint_source

_HEAD = """\
import torch
import torch.nn as nn
import torch.nn.functional as F

"""

_WRONG = {
    "GCS101 function of parameters": """\
def project(layer: nn.Linear):
    net = nn.Linear(3, 3)
    net.weight.mul_(0.5)
""",
    "GCS101 out=": """\
def f(x):
    w = torch.zeros(3, requires_grad=True)
    torch.add(x, 1, out=w)
""",
    "GCS101 row": """\
def f():
    table = nn.Parameter(torch.randn(10, 3))
    table[3] = 0
    row = table[0]
    row.zero_()
""",
    "GCS101 layer bias": """\
class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.c = nn.Conv2d(3, 3, 3)
        self.c.bias.zero_()
""",
    "GCS103 in forward": """\
class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(3, 3)
        self.b = nn.Linear(3, 3)

    def forward(self, x):
        h = self.a(x)
        y = self.b(h)
        h.mul_(0.5)
        return y + h
""",
    "GCS103 mse": """\
def f(model, x, y):
    out = model(x)
    loss = F.mse_loss(out, y)
    out.zero_()
    loss.backward()
""",
    "GCS103 square loss": """\
def f(model, x, y):
    d = model(x) - y
    loss = d.pow(2).mean()
    d += 1
    loss.backward()
""",
    "GCS105 relu via data": """\
class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Conv2d(3, 3, 3)

    def forward(self, x):
        y = self.f(x)
        y.data[y.data < 0] = 0
        return y
""",
    "GCS105 noise on weights before backward": """\
def step(model, opt, x):
    for _ in range(3):
        opt.zero_grad()
        loss = model(x).mean()
        for p in model.parameters():
            p.data.add_(0.1)
        loss.backward()
        opt.step()
""",
    "GCS106 stack of heads": """\
class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.heads = nn.ModuleList([nn.Linear(3, 1) for _ in range(4)])

    def forward(self, x):
        out = x.new_zeros(len(x), 4)
        for i, h in enumerate(self.heads):
            out[:, i] = h(x).squeeze(1)
        return out
""",
    "GCS106 zeros cuda": """\
class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.h = nn.Linear(3, 1)

    def forward(self, x):
        out = torch.zeros(len(x), 4).cuda()
        for i in range(4):
            out[:, i] = self.h(x).squeeze(1)
        return out
""",
    "GCS107 einsum": """\
class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.Linear(3, 3)

    def forward(self, x):
        h = self.l(x)
        h[:, 0] = torch.mul(h[:, 0], h[:, 1])
        return h
""",
    "GCS107 div": """\
class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.Linear(3, 3)

    def forward(self, x):
        h = self.l(x)
        h[:, 0] = h[:, 0] / h[:, 2]
        return h
""",
    "GCS108 sequential": """\
class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.n = nn.Sequential(nn.Linear(2, 2), nn.Sigmoid(), nn.ReLU(inplace=True))
""",
    "GCS108 sqrt add": """\
class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.n = nn.Linear(2, 2)

    def forward(self, x):
        s = torch.sqrt(self.n(x))
        s.add_(1e-6)
        return s
""",
    "GCS108 rsqrt step": """\
def train(model, opt, x):
    s = model(x).rsqrt()
    s *= 2
    loss = s.mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
""",
    "GCS109 critic": """\
def train(actor, critic, loader):
    oa = torch.optim.Adam(actor.parameters())
    oc = torch.optim.Adam(critic.parameters())
    for s, r in loader:
        v = critic(s)
        lc = F.mse_loss(v, r)
        oc.zero_grad()
        lc.backward(retain_graph=True)
        oc.step()
        la = -(actor(s) * (r - v)).mean()
        oa.zero_grad()
        la.backward()
        oa.step()
""",
    "GCS204 predict": """\
def predict(model, loader):
    model.eval()
    outs = []
    for x in loader:
        outs.append(model(x).argmax(1).cpu())
    return outs
""",
    "GCS205 tuple": """\
class A(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.x, ctx.w = x, w
        return x @ w

    @staticmethod
    def backward(ctx, g):
        return g @ ctx.w.t(), ctx.x.t() @ g
""",
    "GCS206 loop": """\
def train(model, loader, opt):
    for x in loader:
        loss = model(x).mean()
        loss.backward(create_graph=True)
        pen = sum(p.grad.norm() for p in model.parameters())
        pen.backward()
        opt.step()
""",
    "GCS401 tensor of list": """\
def train(model, xs, y):
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in xs:
        loss = torch.tensor(model(x).mean())
        opt.zero_grad()
        loss.backward()
        opt.step()
""",
    "GCS401 detach loop": """\
def train(model, loader):
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader:
        out = model(x).detach()
        loss = out.pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
""",
    "GCS401 argmax loop": """\
def train(model, loader):
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in loader:
        loss = model(x).argmax(1).float().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
""",
    "GCS402 inference": """\
def train(model, loader):
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in loader:
        with torch.inference_mode():
            loss = model(x).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
""",
    "GCS404 tuple": """\
class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.pair = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, x):
        return self.pair[1](self.pair[0](x))
""",
    "GCS404 own class": """\
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.Linear(2, 2)

class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = [Block() for _ in range(4)]

    def forward(self, x):
        for b in self.blocks:
            x = b(x)
        return x
""",
    "GCS404 dict comp": """\
class M(nn.Module):
    def __init__(self, tasks):
        super().__init__()
        self.heads = {t: nn.Linear(2, 2) for t in tasks}
""",
    "GCS405 loop": """\
def train(model, loader):
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader:
        loss = torch.tensor(F.mse_loss(model(x), y).item(), requires_grad=True)
        opt.zero_grad()
        loss.backward()
        opt.step()
""",
    "GCS405 acc loop": """\
def train(model, loader):
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader:
        loss = model(x).argmax(1).float().mean()
        loss.requires_grad = True
        opt.zero_grad()
        loss.backward()
        opt.step()
""",
    "GCS407 model output": """\
def f(model, x, y):
    out = model(x)
    loss = F.mse_loss(out, y)
    loss.backward()
    return out.grad
""",
    "GCS501 setup": """\
class A(torch.autograd.Function):
    @staticmethod
    def forward(x, k, eps):
        return x * k + eps

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.k = inputs[1]

    @staticmethod
    def backward(ctx, g):
        return g * ctx.k, None
""",
    "GCS502 with init": """\
from torch.autograd import Function

class GradReverse(Function):
    def __init__(self, lam):
        self.lam = lam

    def forward(self, x):
        return x.view_as(x)

    def backward(self, g):
        return g * -self.lam

def rev(x):
    return GradReverse(1.0)(x)
""",
    "GCS503 clamp": """\
class C(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, lo, hi):
        ctx.save_for_backward(x)
        x.clamp_(lo, hi)
        return x

    @staticmethod
    def backward(ctx, g):
        return g, None, None
""",
    "GCS504 numpy": """\
import numpy as np

class C(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        a = x.detach().cpu().numpy()
        ctx.save_for_backward(x)
        return torch.as_tensor(np.fft.fft(a).real)

    @staticmethod
    def backward(ctx, g):
        a = g.cpu().numpy()
        return torch.as_tensor(np.fft.ifft(a).real)
""",
    "GCS506 mul": """\
class C(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, s):
        ctx.s = s
        return x * s

    @staticmethod
    def backward(ctx, grad_output):
        grad_output *= ctx.s
        return grad_output, None
""",
    "GCS507 var": """\
class C(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        std = x.std()
        ctx.save_for_backward(x, std)
        return x / std

    @staticmethod
    def backward(ctx, g):
        x, std = ctx.saved_tensors
        return g / std
""",
    "GCS604 rsqrt": """\
class M(nn.Module):
    def forward(self, x):
        return torch.where(x > 0, x.rsqrt(), torch.zeros_like(x))
""",
    "GCS604 norm div": """\
class M(nn.Module):
    def forward(self, d):
        return torch.where(d != 0, torch.reciprocal(d), torch.zeros_like(d))
""",
    "GCS701 evaluate": """\
def evaluate(model, loader):
    total = 0
    with torch.no_grad():
        for x, y in loader:
            total += (model(x).argmax(1) == y).sum().item()
    return total

def train(model, loader, val):
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for e in range(3):
        model.train()
        for x, y in loader:
            opt.zero_grad()
            F.cross_entropy(model(x), y).backward()
            opt.step()
        evaluate(model, val)
""",
    "GCS902 keyword": """\
from torch.autograd import Variable

def test(model, loader):
    for x in loader:
        model(Variable(x.cuda(), volatile=True))
""",
    "GCS903 total": """\
def train(model, opt, loader):
    total = 0
    for x, y in loader:
        loss = F.nll_loss(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.data[0]
    return total
""",
}


@pytest.mark.parametrize("name", _WRONG)
def test_mistake_is_found(name: str) -> None:
    found = lint_source((_HEAD + _WRONG[name]).encode(), "train.py")
    assert name[:6] in [finding.code for finding in found]
