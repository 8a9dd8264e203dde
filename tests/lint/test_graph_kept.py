from __future__ import annotations

import re

import pytest

from gradcheck_lint.engine import lint_source

_HEADER = "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n"
_MARK = re.compile(r"# !")

_METER = """
class Meter:
    def __init__(self):
        self.total, self.values = 0.0, []
    def add(self, value):
        self.total += value
    def push(self, value):
        self.values.append(value)
    def reset(self):
        self.total, self.values = 0.0, []
class T:
    def __init__(self, model, opt):
        self.model, self.opt = model, opt
        self.meter, self.losses = Meter(), []
    def step(self, x):
        self.opt.zero_grad()
        loss = self.model(x).mean()
        loss.backward()
        self.opt.step()
"""

_MISTAKES = {
    "a meter of the object, in a method that a loop runs": _METER
    + """
        self.meter.add(loss)  # !
        self.meter.push(loss)  # !
        self.losses.append(loss)  # !
    def fit(self, loader):
        for epoch in range(9):
            self.meter.reset()
            for x in loader:
                self.step(x)
""",
    "a mean that begins where there is none": """
def train(model, loader, opt):
    mean = other = late = None
    for step, x in enumerate(loader):
        opt.zero_grad()
        loss = model(x).mean()
        loss.backward()
        opt.step()
        mean = loss if mean is None else 0.9 * mean + 0.1 * loss  # !
        other = 0.9 * other + 0.1 * loss if other is not None else loss  # !
        if not late:
            late = loss
        else:
            late = 0.9 * late + 0.1 * loss  # !
    return mean, other, late
""",
    "a mean that begins in the first iteration": """
def train(model, loader, opt):
    mean, number = 0.0, 0.0
    for step, x in enumerate(loader):
        opt.zero_grad()
        loss = model(x).mean()
        loss.backward()
        opt.step()
        if step == 0:
            mean = loss
        else:
            mean = 0.9 * mean + 0.1 * loss  # !
        if step > 0:
            number = number + loss  # !
        else:
            number = loss
    return mean, number
""",
    "comprehensions over the data": """
class T:
    def __init__(self, model):
        self.model, self.opt = model, torch.optim.SGD(model.parameters())
    def step(self, x):
        self.opt.zero_grad()
        loss = self.model(x).mean()
        loss.backward()
        self.opt.step()
        return loss
    def fit(self, loader):
        for epoch in range(9):
            losses = [self.step(x) for x in loader]  # !
            total = sum(self.step(x) for x in loader)  # !
            by_number = {
                i: self.step(x)  # !
                for i, x in enumerate(loader)
            }
def step(model, opt, x):
    opt.zero_grad()
    loss = model(x).mean()
    loss.backward()
    opt.step()
    return loss
def main(model, opt, loader):
    return [step(model, opt, x) for x in loader]  # !
""",
    "a list that setdefault makes": """
class T:
    def __init__(self, model, opt):
        self.model, self.opt = model, opt
        self.losses = {}
    def fit(self, loader):
        kept = {}
        for epoch in range(9):
            for x in loader:
                self.opt.zero_grad()
                loss = self.model(x).mean()
                loss.backward()
                self.opt.step()
                self.losses.setdefault(epoch, []).append(loss)  # !
                kept.setdefault("all", []).append((epoch, loss))  # !
        return kept
""",
    "a mean that moves, of a sum of losses that begins with 0": """
def train(model, loader, opt):
    running = 0.0
    for xs in loader:
        loss = 0
        for x in xs:
            loss = loss + model(x).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        running = 0.95 * running + 0.05 * loss  # !
    return running
""",
    "a part of the loss in a row of a log": """
def train(model, loader, criterion, opt):
    history = []
    for step, (x, y) in enumerate(loader):
        out = model(x)
        error, size = criterion(out, y), out.pow(2).mean()
        opt.zero_grad()
        (error + size).backward()
        opt.step()
        history.append({"step": step, "error": error.item(), "size": size})  # !
""",
    "dict": """
def train(model, loader, opt):
    log = {"loss": [], "acc": []}
    for x in loader:
        opt.zero_grad()
        loss = model(x).mean()
        loss.backward()
        opt.step()
        log["loss"].append(loss)  # !
""",
    "attribute of a method": """
class T:
    def __init__(self, model):
        self.model = model
        self.opt = torch.optim.Adam(model.parameters())
        self.total = 0.0
        self.losses = []
    def step(self, x):
        self.opt.zero_grad()
        self.loss = self.model(x).mean()
        self.loss.backward()
        self.opt.step()
    def fit(self, loader):
        for x in loader:
            self.step(x)
            self.total += self.loss  # !
            self.losses.append(self.loss)  # !
""",
    "dict by counter": """
def train(model, loader, opt):
    log = {}
    for step, x in enumerate(loader):
        reconstruction, divergence = model(x)
        loss = reconstruction + divergence
        opt.zero_grad()
        loss.backward()
        opt.step()
        log[step] = loss  # !
    return log
""",
    "ema": """
def train(model, loader, opt):
    ema = 0.0
    for x in loader:
        opt.zero_grad()
        loss = model(x).mean()
        loss.backward()
        opt.step()
        ema = 0.9 * ema + 0.1 * loss  # !
""",
    "self": """
class T:
    def __init__(self):
        self.losses = []
        self.total = 0.0
    def fit(self, model, loader, opt):
        for epoch in range(3):
            for x in loader:
                opt.zero_grad()
                loss = model(x).mean()
                loss.backward()
                opt.step()
                self.losses.append(loss)  # !
                self.total += loss  # !
""",
    "epoch reset": """
def train(model, loader, opt):
    for epoch in range(10):
        running = 0.0
        for i, x in enumerate(loader):
            opt.zero_grad()
            loss = model(x).mean()
            loss.backward()
            opt.step()
            running += loss * x.size(0)  # !
        print(epoch, running / len(loader))
""",
    "before backward scaled": """
def train(model, loader, opt, scaler, accum):
    total = 0
    for i, x in enumerate(loader):
        loss = model(x).mean() / accum
        total += loss  # !
        scaler.scale(loss).backward()
        if (i + 1) % accum == 0:
            scaler.step(opt)
            scaler.update()
            opt.zero_grad()
    return total
""",
    "div backward": """
def train(model, loader, opt, accum):
    losses = []
    for i, x in enumerate(loader):
        loss = F.mse_loss(model(x), x)
        (loss / accum).backward()
        losses.append(loss)  # !
        opt.step(); opt.zero_grad()
""",
    "phase": """
def train(model, loaders, opt):
    for phase in ["train", "val"]:
        running_loss = 0.0
        for x in loaders[phase]:
            opt.zero_grad()
            with torch.set_grad_enabled(phase == "train"):
                loss = model(x).mean()
                if phase == "train":
                    loss.backward()
                    opt.step()
            running_loss += loss * x.size(0)  # !
""",
    "unpack": """
def train(model, loader, opt):
    losses = []
    for x in loader:
        opt.zero_grad()
        logits, loss = model(x, x)
        loss.backward()
        opt.step()
        losses += [loss]  # !
""",
}

_CORRECT = {
    "a meter of an object that the loop makes": _METER
    + """
        self.meter.push(loss)
        self.losses.append(loss)
def main(model, opt, tasks):
    for task in tasks:
        T(model, opt).step(task)
        made = T(model, opt)
        made.step(task)
""",
    "a meter that is reset as often": _METER
    + """
        self.meter.add(loss)
    def fit(self, loader):
        for x in loader:
            self.meter.reset()
            self.step(x)
""",
    "a meter that a helper resets as often": _METER
    + """
        self.meter.add(loss)
        self.report()
    def report(self):
        print(float(self.meter.total))
        self.meter.reset()
    def fit(self, loader):
        for x in loader:
            self.step(x)
""",
    "a meter that a helper of the loop resets as often": _METER
    + """
        self.meter.push(loss)
    def begin(self):
        self.meter.reset()
    def fit(self, loader):
        for x in loader:
            self.begin()
            self.step(x)
""",
    "a meter of numbers": _METER
    + """
        self.meter.add(loss.item())
        self.meter.push(loss.detach())
    def fit(self, loader):
        for x in loader:
            self.step(x)
""",
    "a meter in a method that nobody runs twice": _METER
    + """
        self.meter.add(loss)
def main(model, opt, x):
    T(model, opt).step(x)
""",
    "one loss, or numbers, or a sum that begins anew": """
def train(model, loader, opt):
    best, mean, last, total, early = None, None, None, None, None
    for step, (x, kind) in enumerate(loader):
        opt.zero_grad()
        loss = model(x).mean()
        loss.backward()
        opt.step()
        best = loss if best is None or loss < best else best
        mean = loss.item() if mean is None else 0.9 * mean + 0.1 * loss.item()
        if kind == 0:
            last = loss
        elif last is not None:
            last = (last + loss) / 2
        if step % 100 == 0:
            total = None
        total = loss if total is None else total + loss
        if early is None:
            early = loss
    return best, mean, last, total, early
""",
    "a sum of losses that begins where there is none, and is the loss": """
def train(model, loader, opt):
    for xs in loader:
        total = None
        for x in xs:
            loss = model(x).mean()
            total = loss if total is None else total + loss
        opt.zero_grad()
        total.backward()
        opt.step()
""",
    "comprehensions that keep numbers, few losses, or nothing": """
class T:
    def __init__(self, model):
        self.model, self.opt = model, torch.optim.SGD(model.parameters())
    def step(self, x):
        self.opt.zero_grad()
        loss = self.model(x).mean()
        loss.backward()
        self.opt.step()
        return loss
    def fit(self, loader, parts):
        numbers = [self.step(x).item() for x in loader]
        floats = {i: float(self.step(x)) for i, x in enumerate(loader)}
        total = sum(self.step(x).detach() for x in loader)
        with torch.no_grad():
            mean = sum(self.step(x) for x in loader) / len(loader)
        first, second = [self.step(x) for x in (parts[0], parts[1])]
        worst = max(self.step(part) for part in parts)
""",
    "a list that setdefault makes, of numbers, or for the iteration": """
def fit(model, opt, loader):
    losses = {}
    for epoch in range(9):
        for x in loader:
            parts = {}
            opt.zero_grad()
            loss = model(x).mean()
            parts.setdefault("mean", []).append(loss)
            loss.backward()
            opt.step()
            losses.setdefault(epoch, []).append(loss.item())
    return losses
""",
    "a mean that moves, of a number": """
def train(model, loader, opt):
    running = 0.0
    for xs in loader:
        loss = 0
        for x in xs:
            loss = loss + model(x).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        running = 0.95 * running + 0.05 * float(loss)
    return running
""",
    "numbers and data in a row of a log": """
def train(model, loader, criterion, opt):
    history = []
    for step, (x, y) in enumerate(loader):
        out = model(x)
        error, size = criterion(out, y), out.pow(2).mean()
        opt.zero_grad()
        (error + size).backward()
        opt.step()
        history.append({"step": step, "error": error.item(), "size": size.detach(), "x": x})
""",
    "attribute of a method without its graph": """
class T:
    def __init__(self, model):
        self.model = model
        self.opt = torch.optim.Adam(model.parameters())
        self.total = 0.0
    def step(self, x):
        self.opt.zero_grad()
        self.loss = self.model(x).mean()
        self.loss.backward()
        self.opt.step()
        self.loss = self.loss.detach()
    def other(self, x):
        self.loss = self.model(x).mean().item()
    def fit(self, loader):
        for x in loader:
            self.step(x)
            self.total += self.loss
        for x in loader:
            self.other(x)
            self.total += self.loss
""",
    "loss sum terms": """
def f(model, loader, opt):
    for x in loader:
        opt.zero_grad()
        total = 0
        outs = []
        for k in range(3):
            l = model(x, k)
            outs.append(l)
            total = total + l
        total.backward()
        opt.step()
""",
    "meter": """
def f(model, loader, opt, meter):
    best = None
    for x in loader:
        opt.zero_grad()
        loss = model(x).mean()
        loss.backward()
        opt.step()
        meter.update(loss)
        best = loss
        last = {"loss": loss}
        loss = loss.detach()
        meter.total += loss
""",
    "bptt": """
def f(model, loader, opt):
    loss = 0
    for i, x in enumerate(loader):
        loss = loss + model(x).mean()
        if i % 10 == 9:
            opt.zero_grad()
            loss.backward()
            opt.step()
            loss = 0
""",
    "bptt2": """
def f(model, loader, opt):
    loss = 0
    for i, x in enumerate(loader):
        l = model(x).mean()
        loss += l
        if i % 10 == 9:
            opt.zero_grad()
            loss.backward()
            opt.step()
            loss = 0
""",
    "window reset": """
def f(model, loader, opt):
    losses = []
    for i, x in enumerate(loader):
        opt.zero_grad()
        l = model(x).mean()
        l.backward()
        opt.step()
        losses.append(l.detach().cpu())
        if i % 10 == 9:
            losses = []
""",
}


@pytest.mark.parametrize("source", _MISTAKES.values(), ids=_MISTAKES)
def test_mistake_is_reported_on_exactly_the_marked_lines(source):
    text = _HEADER + source
    marked = [line for line, code in enumerate(text.split("\n"), 1) if _MARK.search(code)]
    found = lint_source(text.encode(), "sample.py")
    assert [(f.code, f.location.line) for f in found] == [("GCS201", line) for line in marked]


@pytest.mark.parametrize("source", _CORRECT.values(), ids=_CORRECT)
def test_correct_look_alike_is_silent(source):
    assert lint_source((_HEADER + source).encode(), "sample.py") == ()


@pytest.mark.parametrize("store", ["running += loss", "running = running + loss * 2"])
def test_a_sum_in_the_innermost_of_three_loops(store):
    source = f"""\
import torch

def fit(model, loaders, optimizer):
    for epoch in range(100):
        for phase in ("train", "test"):
            running = 0.0
            for x in loaders[phase]:
                loss = model(x).mean()
                if phase == "train":
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                {store}
            print(running)
"""
    findings = lint_source(source.encode(), "fit.py")
    assert [(found.code, found.location.line) for found in findings] == [("GCS201", 13)]
