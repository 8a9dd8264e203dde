"""Graphs that a function puts into a list or a meter which its caller hands to it."""

from __future__ import annotations

import re

import pytest

from gradcheck_lint.engine import lint_source

_HEADER = """\
import collections
import torch
class Meter:
    def __init__(self):
        self.total, self.values = 0.0, []
    def add(self, value, n=1):
        self.total += value * n
    def push(self, value):
        self.values.append(value)
    def number(self, value):
        self.total += float(value)
    def mean(self):
        return self.total / 2
    def reset(self):
        self.total, self.values = 0.0, []
"""
_MARK = re.compile(r"# !")

_STEP = """
def step(model, opt, x, meter):
    opt.zero_grad()
    loss = model(x).mean()
    loss.backward()
    opt.step()
"""

_MISTAKES = {
    "a meter, from a loop": _STEP
    + """
    meter.add(loss, len(x))  # !
    meter.push(loss)  # !
def main(model, opt, loader):
    meter = Meter()
    for epoch in range(9):
        for x in loader:
            step(model, opt, x, meter)
    print(meter.mean())
""",
    "a meter by name, which is emptied for each epoch": _STEP
    + """
    meter.add(value=loss)  # !
def main(model, opt, loader):
    for epoch in range(9):
        meter = Meter()
        for x in loader:
            step(model, opt, x=x, meter=meter)
""",
    "a meter, in a loop of the function": """
def train(model, loader, opt, meter):
    for x in loader:
        opt.zero_grad()
        loss = model(x).mean()
        loss.backward()
        opt.step()
        meter.add(loss)  # !
def main(model, opt, loader):
    train(model, loader, opt, Meter())
""",
    "a meter, in a method": """
class Trainer:
    def __init__(self, model, opt):
        self.model, self.opt = model, opt
    def step(self, x, meter):
        self.opt.zero_grad()
        loss = self.model(x).mean()
        loss.backward()
        self.opt.step()
        meter.push(loss)  # !
    def fit(self, loader):
        meter = Meter()
        for x in loader:
            self.step(x, meter)
""",
    "a list": _STEP.replace("meter", "losses")
    + """
    losses.append(loss)  # !
def main(model, opt, loader):
    losses = []
    for x in loader:
        step(model, opt, x, losses)
    return losses
""",
}

_CORRECT = {
    "numbers": _STEP
    + """
    meter.add(loss.item(), len(x))
    meter.push(loss.detach())
    meter.number(loss)
def main(model, opt, loader):
    meter = Meter()
    for x in loader:
        step(model, opt, x, meter)
""",
    "a meter that the loop empties": _STEP
    + """
    meter.add(loss)
def main(model, opt, loader):
    meter = Meter()
    for x in loader:
        step(model, opt, x, meter)
        print(meter.mean())
        meter.reset()
""",
    "a meter that the loop makes": _STEP
    + """
    meter.add(loss)
def main(model, opt, loader):
    for x in loader:
        meter = Meter()
        step(model, opt, x, meter)
        print(meter.mean())
""",
    "a meter that is handed over once": _STEP
    + """
    meter.add(loss)
def main(model, opt, x):
    step(model, opt, x, Meter())
""",
    "a meter of which nobody knows what it does": _STEP
    + """
    meter.add(loss)
def main(model, opt, loader, meters):
    for x in loader:
        step(model, opt, x, meters["loss"])
""",
    "one of several classes": _STEP
    + """
    meter.add(loss)
class Quiet:
    def add(self, value, n=1):
        pass
def main(model, opt, loader):
    meter, quiet = Meter(), Quiet()
    for x in loader:
        step(model, opt, x, meter)
        step(model, opt, x, quiet)
""",
    "nobody calls it": _STEP
    + """
    meter.add(loss)
""",
    "another object in its place": _STEP
    + """
    meter = meter.child()
    meter.add(loss)
def main(model, opt, loader):
    meter = Meter()
    for x in loader:
        step(model, opt, x, meter)
""",
    "a sum that is differentiated": """
def add_up(model, batches, meter):
    for x in batches:
        meter.add(model(x).mean())
def main(model, opt, loader):
    for batches in loader:
        meter = Meter()
        add_up(model, batches, meter)
        opt.zero_grad()
        meter.mean().backward()
        opt.step()
""",
    "a list that the loop empties": _STEP.replace("meter", "losses")
    + """
    losses.append(loss)
def main(model, opt, loader):
    losses, others = [], []
    for x in loader:
        step(model, opt, x, losses)
        losses.clear()
        step(model, opt, x, others)
        print(sum(others))
        others = []
""",
    "a list that the function cuts short": _STEP.replace("meter", "losses")
    + """
    losses.append(loss)
    if len(losses) > 9:
        losses.pop(0)
def main(model, opt, loader):
    losses = []
    for x in loader:
        step(model, opt, x, losses)
""",
    "a list of the last few": _STEP.replace("meter", "losses")
    + """
    losses.append(loss)
def main(model, opt, loader):
    losses = collections.deque(maxlen=20)
    for x in loader:
        step(model, opt, x, losses)
""",
    "a list for each iteration": _STEP.replace("meter", "losses")
    + """
    losses.append(loss)
def main(model, opt, loader):
    for x in loader:
        losses = []
        step(model, opt, x, losses)
        step(model, opt, x, losses)
        print(len(losses))
""",
}


@pytest.mark.parametrize("body", _MISTAKES.values(), ids=_MISTAKES)
def test_graphs_in_what_a_caller_hands_over_are_found(body: str) -> None:
    source = f"{_HEADER}{body}"
    expected = [number for number, line in enumerate(source.splitlines(), 1) if _MARK.search(line)]
    found = [item for item in lint_source(source.encode(), "x.py") if item.code == "GCS201"]
    assert [item.location and item.location.line for item in found] == expected


@pytest.mark.parametrize("body", _CORRECT.values(), ids=_CORRECT)
def test_what_no_loop_piles_up_is_left_alone(body: str) -> None:
    found = lint_source(f"{_HEADER}{body}".encode(), "x.py")
    assert [item for item in found if item.code == "GCS201"] == []
