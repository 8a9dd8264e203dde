"""GCS201: what grows by a graph in each iteration, by joining, by copies, by entry, by calls."""

from __future__ import annotations

import pytest

from gradcheck_lint.engine import lint_source

_LOOP = """\
import torch
import torch.nn.functional as F
from collections import defaultdict, deque

def train(model, loader, optimizer):
    logs, rows, sums, bank = [], defaultdict(list), {"a": 0}, torch.zeros(0, 3)
    for i, (x, y) in enumerate(loader):
        out = model(x)
        losses = {"ce": F.cross_entropy(out, y), "reg": out.pow(2).mean()}
        loss = losses["ce"] + losses["reg"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
BODY
    return logs, rows, sums, bank
"""
_KEPT = {
    "a list with one more": ("logs = logs + [loss]", "error"),
    "a list unpacked into another": ("logs = [*logs, loss]", "error"),
    "an entry that is a sum": ('sums["a"] = sums["a"] + loss', "error"),
    "an entry that may be new": (
        'for k, v in {"a": loss}.items():\n    sums[k] = sums.get(k, 0) + v',
        "error",
    ),
    "a tensor joined": ("bank = torch.cat([bank, out], dim=0)", "warning"),
    "a tensor joined to a number": ("bank = torch.cat((bank, loss.view(1)))", "warning"),
    "a new key of a dictionary": ("sums.update({i: loss})", "error"),
    "a new key among others": ('sums.update({f"{i}/a": loss, f"{i}/b": 0})', "error"),
    "a key with the number of the iteration": ('sums[f"step {i}"] = loss', "error"),
    "a pair as a key": ('sums["a", i] = loss', "error"),
    "a number as text": ("sums[str(i + 1)] = loss", "error"),
    "every term of a loss": ("for k, v in losses.items():\n    rows[k].append(v)", "warning"),
}
_LET_GO = {
    "a list with a number more": "logs = logs + [loss.item()]",
    "a list cut short": "logs = (logs + [loss])[-10:]",
    "the same key again": 'sums.update({"a": loss})\nsums.update(a=loss)',
    "keys that come round again": 'sums[f"{i % 10}"] = loss\nsums.update({i % 10: loss})',
    "the same keys in each iteration": (
        'for k, v in losses.items():\n    sums[f"train/{k}"] = v\n    sums.update({k: v})'
    ),
    "numbers under new keys": "sums.update({i: loss.item()})\nsums[str(i)] = loss.detach()",
    "another list": "logs = [loss]",
    "an entry that is replaced": 'sums["a"] = loss',
    "another entry": 'sums["a"] = sums["b"] + loss',
    "an entry that is a sum of numbers": 'sums["a"] = sums["a"] + loss.item()',
    "joined and detached": "bank = torch.cat([bank, out.detach()], dim=0)",
    "joined and cut short": "bank = torch.cat([bank, out])\nbank = bank[-100:].detach()",
    "joined to what this iteration made": "out = torch.cat([out, out])",
    "terms in a dictionary of this iteration": (
        "row = {}\nfor k, v in losses.items():\n    row.setdefault(k, []).append(v)"
    ),
    "a term in a list of this iteration": (
        'row = defaultdict(list)\nfor k in ("a", "b"):\n    row[k].append(loss)'
    ),
    "numbers of every term": "for k, v in losses.items():\n    rows[k].append(v.item())",
}


def _found(source):
    findings = lint_source(source.encode(), "train.py")
    return [(found.code, found.severity.value) for found in findings]


def _in_loop(body):
    return _LOOP.replace("BODY", "\n".join(f"        {line}" for line in body.splitlines()))


@pytest.mark.parametrize(("body", "severity"), _KEPT.values(), ids=_KEPT)
def test_what_grows_by_a_graph_is_found(body, severity):
    assert _found(_in_loop(body)) == [("GCS201", severity)]


@pytest.mark.parametrize("body", _LET_GO.values(), ids=_LET_GO)
def test_what_keeps_no_graph_is_left_alone(body):
    assert _found(_in_loop(body)) == []


_NETS = """\
import torch

def train(nets, loader, epochs):
    optimizers = {name: torch.optim.Adam(net.parameters()) for name, net in nets.items()}
    losses, step = {}, 0
    for epoch in range(epochs):
        for LOOP:
            step += 1
            optimizers["a"].zero_grad()
            loss = nets["a"](torch.randn(2, 2)).mean()
            loss.backward()
            optimizers["a"].step()
            losses[KEY] = loss
    return losses
"""


@pytest.mark.parametrize(
    ("loop", "key", "is_kept"),
    [
        ("i, x in enumerate(loader)", "i", True),
        ("i, x in enumerate(loader)", "epoch, i", True),
        ("name, net in nets.items()", "step", True),
        ("name, net in nets.items()", "name", False),
        ('name, net in {"a": nets["a"], "b": nets["b"]}.items()', 'f"train/{name}"', False),
        ("i, net in enumerate(nets.values())", "i", False),
        ("i in range(3)", "i", False),
    ],
)
def test_keys_of_an_inner_loop_come_again_unless_it_goes_through_the_data(loop, key, is_kept):
    found = _found(_NETS.replace("LOOP", loop).replace("KEY", key))
    assert found == ([("GCS201", "error")] if is_kept else [])


_STEP = """\
import torch
from collections import deque

class Agent:
    def __init__(self, net):
        self.net = net
        self.history, self.recent, self.total = [], deque(maxlen=9), 0.0
        self.optimizer = torch.optim.Adam(net.parameters())

    def learn(self, state, goal):
        loss = (self.net(state) - goal).pow(2).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        BODY
REST"""


@pytest.mark.parametrize(
    ("body", "rest", "found"),
    [
        ('self.history.append({"loss": loss})', "", [("GCS201", "warning")]),
        ("self.total += loss", "", [("GCS201", "warning")]),
        ("self.history = self.history + [loss]", "", [("GCS201", "warning")]),
        ("self.history = [*self.history, loss]", "", [("GCS201", "warning")]),
        ("self.total = self.total + loss", "", [("GCS201", "warning")]),
        ("self.history = self.history + [loss.item()]", "", []),
        ("self.history = (self.history + [loss])[-9:]", "", []),
        ("self.total = 0.0\n        self.total = self.total + loss", "", []),
        (
            "self.history = self.history + [loss]",
            "\n    def start(self):\n        self.history = []\n",
            [],
        ),
        ("self.history.append(loss.item())", "", []),
        ("self.recent.append(loss)", "", []),
        ("self.history = [loss]", "", []),
        ("self.history.append(loss)", "\n    def show(self):\n        self.history.clear()\n", []),
        (
            "self.history.append(loss)",
            "\ndef main(net, state):\n    agent = Agent(net)\n    agent.learn(state, 0)\n",
            [],
        ),
        (
            "self.history.append(loss)",
            (
                "\ndef main(net, states):\n    agent = Agent(net)\n    for state in states:\n"
                "        agent.learn(state, 0)\n"
            ),
            [("GCS201", "error")],
        ),
    ],
)
def test_a_step_that_another_file_calls_again_and_again(body, rest, found):
    assert _found(_STEP.replace("BODY", body).replace("REST", rest)) == found
