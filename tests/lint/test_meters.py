"""GCS201: meters of the file that keep graphs, within other meters and in dictionaries of them."""

from __future__ import annotations

import pytest

from gradcheck_lint.engine import lint_source

_METERS = """\
import torch
from collections import defaultdict

class Mean:
    def __init__(self):
        self.total, self.count = 0.0, 0
        self.rows = []
    def add(self, value):
        self.total += value
        self.count += 1
    def push(self, value):
        self.rows.append(value.detach())
    def show(self):
        return self.total / self.count
    def take(self):
        mean = self.total / self.count
        self.total, self.count = 0.0, 0
        return mean
    def report(self):
        return self.take()

class Board:
    def __init__(self):
        self.loss = Mean()
        self.means = {"loss": Mean(), "size": Mean()}
        self.made = defaultdict(Mean)
        self.last = None
    def add(self, value):
        self.loss.add(value)
    def add_number(self, value):
        self.loss.add(value.item())
    def push(self, value):
        self.loss.push(value)
    def anew(self, value):
        self.last = Mean()
        self.last.add(value)
    def local(self, value):
        mean = Mean()
        mean.add(value)
    def log(self, **values):
        for name, value in values.items():
            self.means[name].add(value)
    def note(self, **values):
        for name, value in values.items():
            self.made[name].add(value)
    def show(self):
        return self.loss.show()
    def report(self):
        return self.loss.report()

def train(model, loader, optimizer):
    board, mean, means = Board(), Mean(), defaultdict(Mean)
    for x in loader:
        loss = model(x).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        CALL
"""
_LINE = 58


@pytest.mark.parametrize(
    ("call", "is_kept"),
    [
        ("board.add(loss)", True),
        ("board.log(size=len(x), loss=loss)", True),
        ("board.note(loss=loss)", True),
        ("board.add(loss); print(board.show())", True),
        ('means["loss"].add(loss)', True),
        ("mean.add(loss); print(mean.show())", True),
        ("board.add(loss.detach())", False),
        ("board.log(size=len(x), loss=loss.item())", False),
        ("board.add_number(loss)", False),
        ("board.push(loss)", False),
        ("board.anew(loss)", False),
        ("board.local(loss)", False),
        ('means["loss"].add(loss.item())', False),
    ],
)
def test_meters_within_meters(call, is_kept):
    assert _found(_METERS.replace("CALL", call)) == ([_LINE] if is_kept else [])


@pytest.mark.parametrize(
    "call",
    [
        "mean.add(loss); print(mean.take())",
        "mean.add(loss); print(mean.report())",
        "board.add(loss); print(board.report())",
        "board.add(loss); print(board.loss.take())",
    ],
)
def test_meters_that_a_method_of_another_name_empties(call):
    assert _found(_METERS.replace("CALL", call)) == []


def test_a_meter_on_self_that_the_callers_loop_empties():
    source = (
        _METERS.partition("def train")[0]
        + """\
class Trainer:
    def __init__(self, model, optimizer):
        self.model, self.optimizer, self.mean = model, optimizer, Mean()
    def step(self, x):
        loss = self.model(x).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.mean.add(loss)
    def fit(self, loader):
        for x in loader:
            self.step(x)
            print(SHOWN)
"""
    )
    assert _found(source.replace("SHOWN", "self.mean.take()")) == []
    assert _found(source.replace("SHOWN", "self.mean.show()")) == [59]


_KEPT = """\
import torch

def train(model, loader, optimizer, names):
    kept, last = {}, {"loss": 0.0}
    for i, x in enumerate(loader):
        optimizer.zero_grad()
        loss = model(x).mean()
        loss.backward()
        optimizer.step()
        STORE
    return kept, last
"""


@pytest.mark.parametrize(
    ("store", "is_kept"),
    [
        ("kept |= {i: loss}", True),
        ('kept |= {f"loss_{i}": loss, "size": len(x)}', True),
        ("kept |= {i: loss.item()}", False),
        ('last |= {"loss": loss}', False),
        ("kept |= {i % 10: loss}", False),
        ("kept |= {i: loss}; kept.pop(i - 10, None)", False),
        ("seen = i | 3", False),
    ],
)
def test_dictionaries_that_grow_by_their_operator(store, is_kept):
    assert _found(_KEPT.replace("STORE", store)) == ([10] if is_kept else [])


def _found(source):
    findings = lint_source(source.encode(), "train.py")
    assert {found.code for found in findings} <= {"GCS201"}
    return [found.location.line for found in findings]


_MAKER = """\
import torch

def make(model, optimizer):
    history, last = [], {}
    def step(x):
        optimizer.zero_grad()
        loss = model(x).mean()
        loss.backward()
        optimizer.step()
        STORE
        return loss.item()
    RETURN
"""


@pytest.mark.parametrize(
    ("store", "returned", "is_kept"),
    [
        ("history.append(loss)", "return step, history", True),
        ("history.append(loss)", "return step", True),
        ("history.append(loss.item())", "return step, history", False),
        ("last['loss'] = loss", "return step, last", False),
        ("history.append(loss); del history[0]", "return step, history", False),
        ("history.append(loss)", "step(torch.zeros(3)); return history", False),
    ],
)
def test_a_step_of_training_that_another_function_makes(store, returned, is_kept):
    source = _MAKER.replace("STORE", store).replace("RETURN", returned)
    assert _found(source) == ([10] if is_kept else [])
