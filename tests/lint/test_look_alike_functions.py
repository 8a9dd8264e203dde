"""Functions, losses and relics that only look wrong, and wrong ones unlike the examples."""

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
    "GCS205 number in one branch, tensor in the other": """\
class Rotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, cos, offset=0, scale=None):
        if isinstance(offset, int):
            ctx.save_for_backward(cos)
            ctx.offset = offset
        else:
            ctx.save_for_backward(cos, offset)
            ctx.offset = None
        if not torch.is_tensor(scale):
            ctx.scale = scale
        return rotate(x, cos, offset) * scale.view(-1)

    @staticmethod
    def backward(ctx, g):
        return g, None, None, None
""",
    "GCS205 process group has a size": """\
class AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx, group, x):
        ctx.group = group
        return x if group.size() == 1 else exchange(x, group)

    @staticmethod
    def backward(ctx, g):
        return None, exchange(g, ctx.group)
""",
    "GCS205 number beside a local in an operation": """\
class Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, eps):
        square = mean_of(x.float())
        inverse = torch.rsqrt(square + eps)
        ctx.eps = eps
        ctx.save_for_backward(x, weight)
        return x * inverse * weight

    @staticmethod
    def backward(ctx, g):
        return gradients_of(g, ctx.saved_tensors, ctx.eps)
""",
    "GCS205 numbers before added gradients": """\
class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, source, target, x):
        ctx.source = source
        ctx.target = target
        return exchange(source, target, x)

    @staticmethod
    def backward(ctx, g):
        return (None, None) + (Exchange.apply(ctx.target, ctx.source, g),)
""",
    "GCS503 buffer arg non differentiable": """\
class BN(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, running_mean, m):
        mean = x.mean(0)
        running_mean.mul_(m).add_(mean * (1 - m))
        return x - mean

    @staticmethod
    def backward(ctx, g):
        return g - g.mean(0), None, None
""",
    "GCS503 mark via tuple helper": """\
def mark(ctx, *ts):
    ctx.mark_dirty(*ts)

class A(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        mark(ctx, x)
        x.zero_()
        return x

    @staticmethod
    def backward(ctx, g):
        return g * 0
""",
    "GCS507 alias output": """\
class A(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        out = y
        ctx.save_for_backward(y)
        return out

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return g * y
""",
    "GCS604 where data": """\
def prep(x):
    return torch.where(x > 0, torch.log(x), 0.0)
""",
    "GCS604 guard early rebinding max": """\
class M(nn.Module):
    def forward(self, x):
        x = x.clamp_min(1e-5)
        return torch.where(x > 1, torch.log(x), x)
""",
    "GCS903 per sample": """\
def f(m, x, y):
    loss = F.cross_entropy(m(x), y, reduction="none")
    return loss.data[0]
""",
    "GCS903 reduce false": """\
def f(m, x, y):
    crit = nn.CrossEntropyLoss(reduction="none")
    loss = crit(m(x), y)
    return loss.data[0], loss[0]
""",
    "GCS903 reduce kw": """\
def f(m, x, y):
    crit = nn.MSELoss(reduce=False)
    loss = crit(m(x), y)
    return loss.data[0]
""",
    "GCS903 sum dim": """\
def f(m, x):
    loss = m(x).sum(1)
    return loss.data[0]
""",
    "GCS903 mean keepdim": """\
def f(m, x):
    loss = m(x).mean(0)
    total = m(x).sum(dim=-1, keepdim=True)
    return loss.data[0] + total.data[0]
""",
    "GCS903 view": """\
def f(m, x, y):
    loss = F.mse_loss(m(x), y).view(1)
    return loss.data[0]
""",
    "GCS903 unsqueeze": """\
def f(m, x, y):
    loss = F.mse_loss(m(x), y)
    loss = loss.unsqueeze(0)
    return loss.data[0]
""",
    "GCS903 conditional reduction": """\
def f(m, x, y, red):
    crit = nn.CrossEntropyLoss(reduction=red)
    loss = crit(m(x), y)
    return loss.data[0]
""",
    "GCS903 crit in attr": """\
class T:
    def __init__(self, red="none"):
        self.crit = nn.CrossEntropyLoss(reduction=red)

    def f(self, m, x, y):
        loss = self.crit(m(x), y)
        return loss.data[0]
""",
    "GCS903 hasattr": """\
def f(m, x, y):
    loss = F.cross_entropy(m(x), y)
    try:
        v = loss.data[0]
    except IndexError:
        v = loss.item()
    return v
""",
    "GCS903 version": """\
def f(m, x, y):
    loss = F.cross_entropy(m(x), y)
    if torch.__version__ < "0.4":
        v = loss.data[0]
    else:
        v = loss.item()
    return v
""",
    "GCS903 dim if": """\
def f(m, x, y):
    loss = F.cross_entropy(m(x), y)
    return loss.data[0] if loss.dim() else loss.item()
""",
    "GCS903 hasattr if": """\
def f(m, x, y):
    loss = F.cross_entropy(m(x), y)
    return loss.item() if hasattr(loss, "item") else loss.data[0]
""",
    "GCS604 kept away by a sum": """\
class Stable(nn.Module):
    def forward(self, x):
        x = x.abs() + 1e-6
        return torch.where(x > 1, torch.log(x), x)
""",
    "GCS501 decorators that may change it": """\
from .amp import adapt

class A(torch.autograd.Function):
    @staticmethod
    @adapt
    def forward(ctx, x, y, z):
        return x

    @staticmethod
    @adapt
    def backward(ctx, g):
        return g
""",
    "GCS902 version branch": """\
from torch.autograd import Variable

def var(x):
    if torch.__version__ < "0.4":
        return Variable(x, volatile=True)
    with torch.no_grad():
        return x
""",
}

_WRONG = {
    "GCS205 tensor in its own branch": """\
class Rotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, offset=0):
        if isinstance(offset, torch.Tensor):
            ctx.offset = offset
        return rotate(x, offset.view(-1))

    @staticmethod
    def backward(ctx, g):
        return g, None
""",
    "GCS205 tensor asked for its length": """\
class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, index):
        ctx.count = index.size(0)
        ctx.index = index
        return x[index]

    @staticmethod
    def backward(ctx, g):
        return spread(g, ctx.index, ctx.count), None
""",
    "GCS205 tensor before added gradients": """\
class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, count):
        ctx.x = x
        return exchange(x, count)

    @staticmethod
    def backward(ctx, g):
        return (g * ctx.x,) + (None,)
""",
    "GCS501 few": """\
class A(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w, b):
        ctx.save_for_backward(x, w)
        return x @ w + b

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g @ w.t(), x.t() @ g
""",
    "GCS501 one": """\
class A(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, lam):
        ctx.lam = lam
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return g.neg() * ctx.lam
""",
    "GCS502 old": """\
class A(torch.autograd.Function):
    def forward(self, x):
        self.save_for_backward(x)
        return x.clamp(min=0)

    def backward(self, g):
        (x,) = self.saved_tensors
        return g * (x > 0)

def relu(x):
    return A()(x)
""",
    "GCS503 relu": """\
class A(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x[x < 0] = 0
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * (x > 0)
""",
    "GCS503 setup": """\
class A(torch.autograd.Function):
    @staticmethod
    def forward(x, s):
        x.mul_(s)
        return x

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.s = inputs[1]

    @staticmethod
    def backward(ctx, g):
        return g * ctx.s, None
""",
    "GCS504 data": """\
class A(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return torch.from_numpy(g.detach().numpy() * x.detach().exp().numpy())
""",
    "GCS506 mask": """\
class A(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        g[x < 0] = 0
        return g
""",
    "GCS506 clamp": """\
class A(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, g):
        return g.clamp_(-1, 1)
""",
    "GCS507 inter": """\
class A(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        e = torch.exp(x)
        ctx.save_for_backward(e)
        return torch.log(1 + e)

    @staticmethod
    def backward(ctx, g):
        (e,) = ctx.saved_tensors
        return g * e / (1 + e)
""",
    "GCS508 swapped": """\
class Mul(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a * b

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        ga = gb = None
        if ctx.needs_input_grad[1]:
            ga = g * b
        if ctx.needs_input_grad[0]:
            gb = g * a
        return ga, gb
""",
    "GCS604 where sqrt": """\
class M(nn.Module):
    def forward(self, x):
        return torch.where(x > 0, torch.sqrt(x), torch.zeros_like(x))
""",
    "GCS604 where log": """\
def loss_fn(model, x):
    p = model(x)
    return torch.where(p > 0, torch.log(p), torch.zeros_like(p)).mean()
""",
    "GCS901 ": """\
from torch.autograd import Variable as V

def f(x):
    return V(x.cuda())
""",
    "GCS902 ": """\
import torch
from torch import autograd

def f(m, x):
    v = autograd.Variable(x, volatile=True)
    return m(v)
""",
    "GCS903 ": """\
def train(m, opt, loader):
    crit = nn.CrossEntropyLoss()
    for x, y in loader:
        loss = crit(m(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(loss.data[0])
""",
    "GCS503 saved although undifferentiated": """\
class A(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        scale.mul_(2)
        ctx.save_for_backward(scale)
        return x * scale

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0], None
""",
    "GCS604 other name": """\
def loss_fn(model, x):
    p = model(x)
    q = p * 2
    return torch.where(q > 0, torch.sqrt(q), torch.zeros_like(q)).mean()
""",
    "GCS903 guarded elsewhere": """\
def f(m, x, y):
    loss = F.cross_entropy(m(x), y)
    if torch.__version__ < "2":
        print("old")
    return loss.data[0]
""",
    "GCS501 decorated for autocast": """\
from torch.cuda.amp import custom_bwd, custom_fwd

class A(torch.autograd.Function):
    @staticmethod
    @custom_fwd
    def forward(ctx, x, y, z):
        return x

    @staticmethod
    @custom_bwd
    def backward(ctx, g):
        return g, None
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
