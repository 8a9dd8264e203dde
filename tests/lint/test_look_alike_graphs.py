"""Programs whose graphs only look lost or kept, and wrong ones that look otherwise than usual."""

from __future__ import annotations

import pytest

from gradcheck_lint.engine import lint_source

_HEAD = """\
import torch
import torch.nn as nn
import torch.nn.functional as F

"""

# The code of the mistake that each looks like comes first.
_CORRECT = {
    "GCS204 caller by callback": """\
def evaluate(model, loader):
    model.eval()
    for x, y in loader:
        print(model(x))

def silently(f, *a):
    with torch.no_grad():
        return f(*a)

def main(model, loader):
    silently(evaluate, model, loader)
""",
    "GCS204 model forward no_grad": """\
class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.Linear(2, 2)

    @torch.no_grad()
    def forward(self, x):
        return self.l(x)

def evaluate(loader):
    model = M()
    model.eval()
    for x in loader:
        print(model(x))
""",
    "GCS204 lightning": """\
import lightning as L

class M(L.LightningModule):
    def validation_step(self, batch, i):
        x, y = batch
        self.eval()
        self.log("v", F.mse_loss(self(x), y))
""",
    "GCS206 helper clears": """\
def clear(params):
    for p in params:
        p.grad = None

def train(model, opt, x):
    model(x).mean().backward(create_graph=True)
    opt.step()
    clear(model.parameters())
""",
    "GCS207 grads in backward hook": """\
grads = []

def hook(m, gi, go):
    grads.append(go[0])

def reg(model):
    model.register_full_backward_hook(hook)
""",
    "GCS207 decorated no_grad caller": """\
feats = []

def hook(m, i, o):
    feats.append(o)

@torch.no_grad()
def extract(model, loader):
    model.layer.register_forward_hook(hook)
    for x in loader:
        model(x)
    return feats
""",
    "GCS207 deque": """\
from collections import deque

class H:
    def __init__(self, m):
        self.q = deque(maxlen=4)
        m.register_forward_hook(self.hook)

    def hook(self, m, i, o):
        self.q.append(o)
""",
    "GCS207 popped by consumer": """\
class H:
    def __init__(self, m):
        self.q = []
        m.register_forward_hook(self.hook)

    def hook(self, m, i, o):
        self.q.append(o)

    def take(self):
        q, self.q = self.q, []
        return q
""",
    "GCS207 consumer outside": """\
class Tap:
    def __init__(self, m):
        self.feats = []
        m.register_forward_hook(self.hook)

    def hook(self, m, i, o):
        self.feats.append(o)

def loss(model, tap, x):
    tap.feats = []
    model(x)
    return sum(f.mean() for f in tap.feats)
""",
    "GCS207 consumer del": """\
class Tap:
    def __init__(self, m):
        self.feats = []
        m.register_forward_hook(self.hook)

    def hook(self, m, i, o):
        self.feats.append(o)

    def __enter__(self):
        return self

    def __exit__(self, *a):
        del self.feats[:]
""",
    "GCS402 model enables itself": """\
class Energy(nn.Module):
    def forward(self, x):
        with torch.enable_grad():
            x.requires_grad_()
            e = (x**2).sum()
        return e

def forces(x):
    m = Energy()
    with torch.no_grad():
        e = m(x)
    e.backward()
    return x.grad
""",
    "GCS404 optimizer gets them": """\
class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.heads = [nn.Linear(2, 2)]
        self.opt = torch.optim.SGD(
            [p for h in self.heads for p in h.parameters()], lr=0.1
        )
""",
    "GCS404 optimizer gets them outside": """\
class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.heads = [nn.Linear(2, 2)]

def train():
    m = M()
    opt = torch.optim.SGD(m.heads[0].parameters(), lr=0.1)
""",
    "GCS408 arg inputs": """\
from torch.utils.checkpoint import checkpoint

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(2, 2)

    def forward(self, x):
        return checkpoint(self.a, x, use_reentrant=True)
""",
    "GCS408 input is made to require one": """\
from torch.utils.checkpoint import checkpoint

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(2, 2)
        self.register_forward_pre_hook(lambda m, i: i[0].requires_grad_())

    def forward(self, x):
        return checkpoint(self.a, x, use_reentrant=True)
""",
    "GCS404 registered in base": """\
class Base(nn.Module):
    def _register(self):
        for i, b in enumerate(self.blocks):
            self.add_module(str(i), b)

class M(Base):
    def __init__(self):
        super().__init__()
        self.blocks = [nn.Linear(2, 2) for _ in range(3)]
        self._register()
""",
    "GCS404 frozen hidden helper": """\
def freeze(n):
    for p in n.parameters():
        p.requires_grad = False

class P(nn.Module):
    def __init__(self):
        super().__init__()
        self.nets = [nn.Linear(2, 2), nn.Linear(2, 2)]
        for n in self.nets:
            freeze(n)
""",
}

_WRONG = {
    "GCS204 plain": """\
def validate(model, val_loader, criterion):
    model.eval()
    losses = []
    for x, y in val_loader:
        out = model(x)
        losses.append(criterion(out, y).item())
    return sum(losses)
""",
    "GCS204 method": """\
class Trainer:
    def __init__(self, net):
        self.net = net

    def test(self, loader):
        self.net.eval()
        correct = 0
        for x, y in loader:
            pred = self.net(x).argmax(1)
            correct += (pred == y).sum().item()
        return correct
""",
    "GCS204 in epoch loop": """\
def fit(model, train_loader, val_loader, opt):
    for e in range(10):
        model.train()
        for x, y in train_loader:
            opt.zero_grad()
            F.mse_loss(model(x), y).backward()
            opt.step()
        model.eval()
        v = 0
        for x, y in val_loader:
            v += F.mse_loss(model(x), y).item()
        print(v)
""",
    "GCS205 x": """\
class Sq(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.x = x
        return x**2

    @staticmethod
    def backward(ctx, g):
        return 2 * ctx.x * g
""",
    "GCS205 out": """\
class Sig(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.sigmoid(x)
        ctx.out = y
        return y

    @staticmethod
    def backward(ctx, g):
        return g * ctx.out * (1 - ctx.out)
""",
    "GCS205 setup": """\
class Mul(torch.autograd.Function):
    @staticmethod
    def forward(a, b):
        return a * b

    @staticmethod
    def setup_context(ctx, inputs, output):
        a, b = inputs
        ctx.a = a
        ctx.b = b

    @staticmethod
    def backward(ctx, g):
        return g * ctx.b, g * ctx.a
""",
    "GCS206 plain": """\
def second(model, x, opt):
    loss = model(x).pow(2).mean()
    loss.backward(create_graph=True)
    gn = sum(p.grad.pow(2).sum() for p in model.parameters())
    gn.backward()
    opt.step()
""",
    "GCS207 list": """\
class Probe:
    def __init__(self, model):
        self.outs = []
        model.fc.register_forward_hook(self.hook)

    def hook(self, module, inp, out):
        self.outs.append(out)

    def mean(self):
        return sum(o.mean().item() for o in self.outs)
""",
    "GCS207 global": """\
ACTS = []

def keep(module, inp, out):
    ACTS.append(out)

def train(model, loader, opt):
    model.register_forward_hook(keep)
    for x in loader:
        opt.zero_grad()
        model(x).mean().backward()
        opt.step()
""",
    "GCS401 item": """\
def train(model, opt, x, y):
    loss = torch.tensor(F.mse_loss(model(x), y).item())
    opt.zero_grad()
    loss.backward()
    opt.step()
""",
    "GCS402 plain": """\
def train(model, opt, loader):
    for x, y in loader:
        with torch.no_grad():
            out = model(x)
            loss = F.cross_entropy(out, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
""",
    "GCS402 decorator": """\
@torch.no_grad()
def train(model, opt, loader):
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
""",
    "GCS402 left disabled": """\
def train(model, opt, loader, val):
    torch.set_grad_enabled(False)
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
""",
    "GCS404 list comp": """\
class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.heads = [nn.Linear(2, 2) for _ in range(3)]

    def forward(self, x):
        return sum(h(x) for h in self.heads)
""",
    "GCS404 dict": """\
class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Linear(2, 2)
        self.heads = {}
        for t in ("a", "b"):
            self.heads[t] = nn.Linear(2, 2)

    def forward(self, x):
        return self.heads["a"](self.enc(x))
""",
    "GCS404 params": """\
class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.ws = []
        for i in range(3):
            self.ws.append(nn.Parameter(torch.randn(2)))

    def forward(self, x):
        return sum(w * x for w in self.ws)
""",
    "GCS702 ": """\
def run(model, train_loader, val_loader, opt):
    model.train()
    for e in range(3):
        for x in train_loader:
            opt.zero_grad()
            model(x).mean().backward()
            opt.step()
        model.eval()
        with torch.no_grad():
            for x in val_loader:
                print(model(x))
""",
    "GCS702 helper": """\
def evaluate(model, val_loader):
    model.eval()
    with torch.no_grad():
        for x in val_loader:
            print(model(x))

def run(model, train_loader, val_loader, opt):
    model.train()
    for e in range(3):
        for x in train_loader:
            opt.zero_grad()
            model(x).mean().backward()
            opt.step()
        evaluate(model, val_loader)
""",
    "GCS802 unwrapped": """\
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

def main(rank, loader):
    dist.init_process_group("nccl")
    net = nn.Linear(2, 2).to(rank)
    model = DDP(net, device_ids=[rank])
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in loader:
        opt.zero_grad()
        loss = model.module(x).mean()
        loss.backward()
        opt.step()
""",
    "GCS404 base of another file": """\
from .mix import Mixin

class M(Mixin, nn.Module):
    def __init__(self):
        super().__init__()
        self.convs = [nn.Conv2d(1, 1, 3)]
""",
    "GCS207 dictionary of lists": """\
class Probe:
    def __init__(self, model):
        self.outs = {"a": []}
        model.fc.register_forward_hook(self.hook)

    def hook(self, module, inp, out):
        self.outs["a"].append(out)
""",
    "GCS207 of what a function gives": """\
def store():
    return []

class Probe:
    def __init__(self, model):
        model.fc.register_forward_hook(self.hook)

    def hook(self, module, inp, out):
        store().append(out)
""",
    "GCS404 dictionary and its names": """\
class M(nn.Module):
    def __init__(self, names):
        super().__init__()
        self.heads = {}
        for name in names:
            self.heads[name] = nn.Linear(2, 2)
        for name, head in self.heads.items():
            print(name, head)

    def forward(self, x):
        return [head(x) for head in self.heads.values()]
""",
}


@pytest.mark.parametrize("program", _CORRECT.values(), ids=_CORRECT.keys())
def test_nothing_is_said_of_what_is_right(program: str) -> None:
    compile(program, "train.py", "exec")
    assert lint_source((_HEAD + program).encode(), "train.py") == ()


@pytest.mark.parametrize("name", _WRONG)
def test_what_is_wrong_is_found(name: str) -> None:
    found = lint_source((_HEAD + _WRONG[name]).encode(), "train.py")
    assert name[:6] in [finding.code for finding in found]
