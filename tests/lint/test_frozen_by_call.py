"""GCS406: models that a function of the file freezes before their optimizer is made."""

from __future__ import annotations

import pytest

from gradcheck_lint.engine import lint_source

_TRAIN = """\
import torch
from torch import nn

def freeze(net):
    for p in net.parameters():
        p.requires_grad = False

def freeze_parts(net, depth):
    for p in net.body[:depth].parameters():
        p.requires_grad = False

def freeze_if(net, wanted):
    if wanted:
        net.requires_grad_(False)

def freeze_all(net, keep=None):
    net.requires_grad_(False)

def train(model, teacher, loader, classes):
    model.fc = nn.Linear(8, classes)
    FREEZE
    optimizer = torch.optim.SGD(model.fc.parameters(), lr=0.1)
    for x in loader:
        optimizer.zero_grad()
        model(x).mean().backward()
        optimizer.step()
"""


@pytest.mark.parametrize("call", ["freeze(model)", "freeze_all(model)", "freeze_all(net=model)"])
def test_a_model_that_is_frozen_as_a_whole(call):
    assert _found(call) == [("GCS406", 22)]


@pytest.mark.parametrize(
    "call",
    [
        "freeze(teacher)",
        "freeze(model); model.fc = nn.Linear(8, classes)",
        "freeze(model); unfreeze(model)",
        "freeze_parts(model, 3)",
        "freeze_if(model, classes > 3)",
        "freeze_all(teacher, keep=model)",
    ],
)
def test_a_model_that_is_frozen_otherwise(call):
    assert _found(call) == []


def _found(call):
    findings = lint_source(_TRAIN.replace("FREEZE", call).encode(), "train.py")
    return [(found.code, found.location.line) for found in findings]
