"""Private names of torch are reached in one place: what a new torch is to be looked at for."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch
from torch import nn

ROOT = Path(__file__).parents[2]
PRODUCT = ("gradcheck_suite", "pytest_plugin")
KNOWN_TO_ALL = {
    "_version": "documented in torch's notes on in-place correctness",
    "_base": "documented beside it",
    "_modules": "what named_children and its like are made of; subclasses use it",
    "_parameters": "likewise",
    "_buffers": "likewise",
}


def private(owner):
    return {name for name in dir(owner) if name.startswith("_") and not name.startswith("__")}


def names_of_torch():
    node = torch.ones(1, requires_grad=True).exp().grad_fn
    owners = (
        *(torch, torch.Tensor, nn.Module, nn, nn.modules.dropout, nn.modules.batchnorm),
        *(torch.autograd, torch.autograd.graph, torch.autograd.function, torch.optim.Optimizer),
        *(torch.overrides, torch.utils.checkpoint, torch._C._autograd, node, nn.Linear(1, 1)),
    )
    return set().union(*map(private, owners))


def used():
    torchs = names_of_torch()
    for folder in PRODUCT:
        for path in (ROOT / folder).rglob("*.py"):
            if "_torch_compat" in path.parts:
                continue
            own = set()
            found = []
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Attribute) and node.attr in torchs:
                    is_own = isinstance(node.value, ast.Name) and node.value.id in {"self", "cls"}
                    (own.add if is_own else found.append)(node.attr)
            yield from ((path.relative_to(ROOT), name) for name in found if name not in own)


@pytest.mark.slow
def test_private_names_of_torch_are_reached_in_one_place():
    outside = {(str(path), name) for path, name in used() if name not in KNOWN_TO_ALL}
    assert outside == set()


@pytest.mark.slow
def test_each_exception_is_used():
    assert {name for _, name in used()} >= set(KNOWN_TO_ALL)
