"""GCS201: outputs and losses that are kept in buffers and by meters of the same file."""

from __future__ import annotations

import pytest

from gradcheck_lint.engine import lint_source

_METERS = """\
import torch
from collections import defaultdict, deque

class Meter:
    def __init__(self):
        self.sums, self.lists, self.rows, self.last = {}, defaultdict(list), [], {}
    def add(self, **values):
        for name, value in values.items():
            self.sums[name] = self.sums.get(name, 0) + value
    def log(self, **values):
        for name, value in values.items():
            self.lists[name].append(value)
    def push(self, *row):
        self.rows.append(row)
    def number(self, **values):
        for name, value in values.items():
            self.lists[name].append(float(value))
    def careful(self, **values):
        for name, value in values.items():
            if torch.is_tensor(value):
                value = value.item()
            self.lists[name].append(value)
    def show(self, **values):
        for name, value in values.items():
            self.last[name] = value
    @torch.no_grad()
    def add_unrecorded(self, **values):
        for name, value in values.items():
            self.sums[name] = self.sums.get(name, 0) + value

"""
_TRAIN = """\
def train(model, loader, optimizer):
    meter = Meter()
    for x in loader:
        loss = model(x).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        CALL
    return meter
"""


@pytest.mark.parametrize(
    ("call", "is_kept"),
    [
        ("meter.add(loss=loss, size=len(x))", True),
        ("meter.log(size=len(x), loss=loss)", True),
        ("meter.push(len(x), loss)", True),
        ("meter.add(loss=loss.item())", False),
        ("meter.log(size=len(x))", False),
        ("meter.number(loss=loss)", False),
        ("meter.careful(loss=loss)", False),
        ("meter.show(loss=loss)", False),
        ("meter.add_unrecorded(loss=loss)", False),
        ("meter.push(len(x), loss.detach())", False),
    ],
)
def test_a_meter_that_takes_any_number_of_values(call, is_kept):
    found = _found(_METERS + _TRAIN.replace("CALL", call))
    assert found == ([("GCS201", "error")] if is_kept else [])


_COLLECT = """\
def learn(env, actor, critic, target, optimizer, state):
    buffer, memory, recent, values = Meter(), deque(maxlen=50_000), deque(maxlen=50), []
    while True:
        BODY
        states = env.sample(32)
        loss = -critic(states, actor(states)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


@pytest.mark.parametrize(
    ("body", "is_kept"),
    [
        ("memory.append((state, actor(state)))", True),
        ("buffer.push(state, actor(state))", True),
        ("values.append(critic(state))", True),
        ("action = actor(state)\n        memory.append((state, action))", True),
        ("recent.append((state, actor(state)))", False),
        ("memory.append((state, actor(state).detach()))", False),
        ("memory.append((state, actor(state).argmax(-1)))", False),
        ("buffer.push(state, actor(state).max(-1)[1].item())", False),
        ("buffer.push(state, target(state))", False),
        ("memory.append((state, env.step(state)))", False),
        ("with torch.no_grad():\n            memory.append((state, actor(state)))", False),
        ("values = [critic(state)]\n        values.append(critic(state))", False),
        ("values.append(critic(state))\n        values.clear()", False),
    ],
)
def test_outputs_of_a_model_that_is_trained_beside(body, is_kept):
    found = _found(_METERS + _COLLECT.replace("BODY", body))
    assert found == ([("GCS201", "warning")] if is_kept else [])


def test_a_buffer_that_a_method_empties_is_left_alone():
    take = """\
    def take(self):
        rows, self.last, self.rows = self.rows, {}, []
        return rows

"""
    source = _METERS.rstrip() + "\n" + take + _COLLECT
    source = source.replace("BODY", "buffer.push(critic(state))\n        rows = buffer.take()")
    assert _found(source) == []


def test_a_kept_output_is_told_by_its_model():
    source = _METERS + _COLLECT.replace("BODY", "values.append(critic(state))")
    (finding,) = lint_source(source.encode(), "train.py")
    assert finding.related[0].message == "it has a graph: backward() goes through its model here"


def _found(source):
    findings = lint_source(source.encode(), "train.py")
    return [(found.code, found.severity.value) for found in findings]


_MADE_HOOK = """\
import torch

class Probe:
    def __init__(self, model):
        self.outputs = {}
        for name, layer in model.named_modules():
            layer.register_forward_hook(self.hook_for(name))

    def hook_for(self, name):
        def keep(module, args, output):
            STORE
        return keep
"""


@pytest.mark.parametrize(
    ("store", "is_kept"),
    [
        ("self.outputs.setdefault(name, []).append(output)", True),
        ("self.outputs[name].append(output[0])", True),
        ("self.outputs.setdefault(name, []).append(output.detach())", False),
        ("self.outputs.setdefault(name, []).append(output.mean().item())", False),
        ("self.outputs[name] = output", False),
    ],
)
def test_a_hook_that_another_function_makes(store, is_kept):
    found = _found(_MADE_HOOK.replace("STORE", store))
    assert found == ([("GCS207", "warning")] if is_kept else [])


@pytest.mark.parametrize(
    "method",
    [
        "        outputs, self.outputs = self.outputs, {}\n        return outputs\n",
        "        return self.outputs.pop(name)\n",
    ],
)
def test_a_hook_whose_outputs_are_taken_out_again(method):
    store = "self.outputs.setdefault(name, []).append(output)"
    source = _MADE_HOOK.replace("STORE", store) + "    def take(self, name):\n" + method
    assert _found(source) == []


def test_a_hook_for_the_list_of_who_removes_it():
    source = """\
import torch

def hook_for(outputs):
    def keep(module, args, output):
        outputs.append(output)
    return keep

def features(model, x):
    outputs = []
    handle = model.fc.register_forward_hook(hook_for(outputs))
    model(x)
    handle.remove()
    return outputs
"""
    assert _found(source) == []
