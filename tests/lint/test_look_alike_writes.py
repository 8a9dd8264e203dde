"""Programs whose writes in place only look wrong, and wrong ones that look otherwise than usual."""

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
    "GCS103 lambda write": """\
def f(x):
    w = torch.randn(3, requires_grad=True)
    loss = (w * x).sum()
    bump = lambda: x.add_(1)
    loss.backward()
    bump()
""",
    "GCS106 inference wrapper": """\
from .utils import inference

@inference
def f(model, xs):
    out = torch.zeros(10)
    model.eval()
    for i, x in enumerate(xs):
        out[i] = model(x)
    return out
""",
    "GCS107 lists": """\
class S(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.Linear(3, 3)

    def forward(self, x):
        h = [self.l(x)]
        h.append(h[0] * x)
        h[1] = h[0] * h[1]
        d = {}
        d["a"] = h[0]
        d["b"] = d["a"] * h[1]
        d["a"] = d["b"] * d["a"]
        return h[1] + d["a"]
""",
    "GCS108 frozen": """\
def f(x):
    w = torch.randn(3, requires_grad=True)
    p = torch.exp(w)
    p.sum().backward()
    p.zero_()
    p += 1
""",
    "GCS108 backward then write": """\
def f(model, x):
    p = torch.sigmoid(model(x))
    F.mse_loss(p, x).backward()
    p[p > 0.5] = 1
    return p
""",
    "GCS108 lambda": """\
def f():
    w = torch.randn(3, requires_grad=True)
    p = torch.exp(w)
    clear = lambda: p.zero_()
    p.sum().backward()
    clear()
""",
    "GCS108 unused for backward": """\
def f(model, x, y):
    out = model(x)
    p = torch.sigmoid(out)
    p[p > 0.5] = 1
    loss = F.binary_cross_entropy_with_logits(out, y)
    loss.backward()
    return p
""",
    "GCS108 decoded in evaluation alone": """\
class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 1)

    def forward(self, x):
        x = self.conv(x)
        if not self.training:
            x = x.sigmoid()
            x[..., 0:2] = x[..., 0:2] * 2
        return x
""",
    "GCS108 training returns before": """\
class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 1)

    def forward(self, x):
        x = self.conv(x)
        if self.training:
            return x
        y = x.sigmoid()
        y[..., 0:2] = y[..., 0:2] * 2
        return y
""",
    "GCS108 otherwise evaluation": """\
class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 1)

    def forward(self, x):
        y = self.conv(x)
        if self.training:
            y = y.sigmoid()
        else:
            y = y.sigmoid()
            y *= 2
        return y
""",
    "GCS108 exported": """\
class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 1)

    def forward(self, x):
        for _ in range(2):
            y = self.conv(x).sigmoid()
            if torch.onnx.is_in_onnx_export():
                y *= 2
        return y
""",
    "GCS108 frozen layer": """\
class Prior(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(3, 3)
        for p in self.net.parameters():
            p.requires_grad = False

    def forward(self, x):
        y = torch.sigmoid(self.net(x))
        y[0] = 1
        return y
""",
    "GCS108 not returned": """\
class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 1)

    def forward(self, x):
        y = self.conv(x)
        seen = torch.sigmoid(y)
        seen[0] = 0
        return y
""",
    "GCS107 only run under no_grad": """\
class Scan(nn.Module):
    def __init__(self):
        super().__init__()
        self.lift = nn.Linear(3, 3)

    def scan(self, x):
        h = self.lift(x)
        h[:, 0] = h[:, 1] * h[:, 2]
        return h

    @torch.no_grad()
    def predict(self, x):
        return self.scan(x)
""",
    "GCS107 list of an unknown model": """\
class Pyramid(nn.Module):
    def __init__(self, backbone):
        super().__init__()
        self.backbone = backbone

    def forward(self, x):
        maps = self.backbone(x)
        maps[1] = maps[0] * maps[1]
        return maps
""",
    "GCS107 coordinates made relative to a size": """\
class Position(nn.Module):
    def forward(self, points, shape, width=1):
        where = points.clone()
        where[:, 0] = where[:, 0] / shape[1]
        where[:, 1] = where[:, 1] * width
        return 2 * where - 1
""",
    "GCS107 scaled by numbers of all sorts": """\
class Scale(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.lift = nn.Linear(3, 3)
        self.factor = config.factor
        self.register_buffer("deviation", torch.ones(3))

    def forward(self, x):
        h = self.lift(x).clone()
        rows, columns = x.shape
        h[:, 0] = h[:, 0] * self.factor
        h[:, 1] = h[:, 1] / rows + self.lift(x)[:, 1]
        h[:, 2] = h[:, 2] * float(columns)
        for step in range(1, 3):
            h[step] = h[step - 1] * step
        return h / self.deviation
""",
    "GCS103 written in evaluation alone": """\
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)

    def forward(self, x):
        h = self.first(x)
        out = self.second(h)
        if not self.training:
            h += 1
        return out + h
""",
}

_WRONG = {
    "GCS103 sq": """\
def f(x):
    w = torch.randn(3, requires_grad=True)
    h = w * x
    loss = (h**2).sum()
    h.zero_()
    loss.backward()
""",
    "GCS103 weights": """\
def f(model, x, y):
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    scale = torch.ones(3, requires_grad=True)
    z = scale * x
    x.mul_(2)
    z.sum().backward()
""",
    "GCS103 sin": """\
def f():
    a = torch.rand(3, requires_grad=True)
    b = a + 1
    c = b.sin()
    b.add_(1)
    c.sum().backward()
""",
    "GCS103 index": """\
def f():
    a = torch.rand(3, requires_grad=True)
    b = a.clone()
    c = b * b
    b[0] = 0
    c.sum().backward()
""",
    "GCS106 decoder": """\
class D(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 3)

    def forward(self, xs):
        res = torch.empty(xs.shape[0], 3, device=xs.device)
        for b in range(xs.shape[0]):
            res[b, :] = F.relu(self.fc(xs[b]))
        return res
""",
    "GCS106 seq2seq": """\
class S(nn.Module):
    def __init__(self, enc, dec):
        super().__init__()
        self.enc, self.dec = nn.LSTM(3, 3), nn.LSTMCell(3, 3)
        self.out = nn.Linear(3, 5)

    def forward(self, src, trg):
        outputs = torch.zeros(len(trg), 2, 5).to(src.device)
        o, (h, c) = self.enc(src)
        for t in range(1, len(trg)):
            h, c = self.dec(trg[t], (h, c))
            outputs[t] = self.out(h)
        return outputs
""",
    "GCS106 loop with matmul of parameter": """\
class K(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(3, 3))

    def forward(self, x):
        m = torch.zeros(8, 3)
        for i in range(8):
            m[i] = self.w @ x[i]
        return m
""",
    "GCS107 gate": """\
class S(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.Linear(3, 3)

    def forward(self, x):
        a = torch.sigmoid(self.l(x))
        s = torch.zeros(4, 3)
        for i in range(1, 4):
            s[i] = a[i] * s[i - 1] + x[i]
        return s
""",
    "GCS107 cross": """\
class S(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.Linear(3, 3)

    def forward(self, x):
        h = self.l(x)
        h[:, 0] = h[:, 1] * h[:, 2]
        return h
""",
    "GCS107 gate of an argument": """\
class S(nn.Module):
    def forward(self, x, decay):
        y = torch.zeros_like(x)
        for t in range(1, 5):
            y[t] = decay[t] * y[t - 1] + x[t]
        return y
""",
    "GCS107 two items of the same": """\
class S(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.Linear(3, 3)

    def forward(self, x):
        y = torch.zeros_like(x)
        y[0] = self.l(x)[0]
        for t in range(2, 4):
            y[t] = y[t - 1] * y[t - 2] + self.l(x)[t]
        return y
""",
    "GCS107 method of the gate": """\
class S(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.Linear(3, 3)

    def forward(self, x):
        y = torch.zeros_like(x)
        gate = self.l(x)
        for t in range(1, 4):
            y[t] = gate.mul(y[t - 1])
        return y
""",
    "GCS107 result of a layer": """\
class S(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.Linear(3, 3)

    def forward(self, x):
        y = x.clone()
        y[:, 0] = y[:, 0] * self.l(x)[:, 0]
        return y
""",
    "GCS107 param decay": """\
class S(nn.Module):
    def __init__(self):
        super().__init__()
        self.decay = nn.Parameter(torch.ones(3))

    def forward(self, x):
        y = torch.zeros(5, 3)
        for t in range(1, 5):
            y[t] = self.decay * y[t - 1] + x[t]
        return y
""",
    "GCS108 softmax mask": """\
class A(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = nn.Linear(3, 3)

    def forward(self, x, m):
        a = F.softmax(self.q(x), dim=-1)
        a.masked_fill_(m, 0)
        return a @ x
""",
    "GCS108 tanh +=": """\
class A(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = nn.Linear(3, 3)

    def forward(self, x):
        a = self.q(x).tanh()
        a += x
        return a
""",
    "GCS108 sigmoid slices": """\
class A(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = nn.Conv2d(3, 3, 1)

    def forward(self, x):
        y = self.q(x)
        y = y.sigmoid()
        y[..., 0:2] = y[..., 0:2] * 2
        return y
""",
    "GCS108 relu_ after sigmoid": """\
def f():
    w = torch.randn(3, requires_grad=True)
    p = torch.sqrt(w)
    F.relu_(p)
    p.sum().backward()
""",
    "GCS109 shared encoder": """\
def train(enc, h1, h2, loader):
    oe = torch.optim.Adam(list(enc.parameters()) + list(h1.parameters()))
    o2 = torch.optim.Adam(h2.parameters())
    for x in loader:
        f = enc(x)
        oe.zero_grad()
        h1(f).mean().backward(retain_graph=True)
        oe.step()
        o2.zero_grad()
        h2(f).mean().backward()
        o2.step()
""",
    "GCS108 exp in step": """\
def f(model, x, y):
    p = torch.exp(model(x))
    p[p > 1] = 1
    loss = F.mse_loss(p, y)
    loss.backward()
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
