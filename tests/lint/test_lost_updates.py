"""GCS102: an update that gives the name of a loop another value, and no parameter."""

from __future__ import annotations

import pytest

from gradcheck_lint.engine import lint_source

_HEADER = "import torch\n\ndef change(model, other, lr, share, gradients):\n"

_LOST = {
    "numbered": "for i, p in enumerate(model.parameters()):\n    p = p - lr * p.grad",
    "named": "for name, p in model.named_parameters():\n    p = p * share",
    "numbered and named": (
        "for i, (name, p) in enumerate(model.named_parameters()):\n    p = p * share"
    ),
    "of two models": (
        "for p, q in zip(model.parameters(), other.parameters()):\n"
        "    p = share * p + (1 - share) * q"
    ),
    "with its gradient let go": (
        "for p in model.parameters():\n    p = p - lr * p.grad\n    p.grad = None"
    ),
    "beside other loops of this name": (
        "total = sum(p.numel() for p in model.parameters())\n"
        "for p in model.parameters():\n"
        "    p = p - lr * total\n"
        "for p in other.parameters():\n"
        "    p.requires_grad_(False)"
    ),
}

_KEPT = {
    "collected": (
        "found = []\nfor p in model.parameters():\n    p = p - lr * p.grad\n    found.append(p)"
    ),
    "returned by a lambda": (
        "found = []\nfor p in model.parameters():\n    p = p * share\n    found.append(lambda: p)"
    ),
    "read after the loop": "for p in model.parameters():\n    p = p * share\nprint(p)",
    "changed in an inner loop": (
        "for p in model.parameters():\n    for _ in range(3):\n        p = p * share"
    ),
    "in place": (
        "with torch.no_grad():\n    for p in model.parameters():\n        p -= lr * p.grad"
    ),
    "another value first": (
        "for p in model.parameters():\n    p = p.detach()\n    p = p * share\n    p.mul_(2)"
    ),
    "no parameters": "for p in gradients:\n    p = p * share",
    "the gradient beside it": (
        "for p, g in zip(model.parameters(), gradients):\n    g = g * share\n    p.grad = g"
    ),
}


def _found(body):
    indented = "".join(f"    {line}\n" for line in body.split("\n"))
    return [found.code for found in lint_source((_HEADER + indented).encode(), "sample.py")]


@pytest.mark.parametrize("body", _LOST.values(), ids=_LOST)
def test_an_update_that_nobody_reads_is_reported(body):
    assert _found(body) == ["GCS102"]


@pytest.mark.parametrize("body", _KEPT.values(), ids=_KEPT)
def test_an_update_that_is_read_or_made_in_place_is_not(body):
    assert _found(body) == []


@pytest.mark.parametrize(
    ("option", "lost"),
    [
        ("", "it is not registered and never trained"),
        (", requires_grad=True", "it is not registered and never trained"),
        (
            ", requires_grad=False",
            "it is not registered, and `state_dict()` and `.to()` leave it out",
        ),
    ],
)
def test_what_is_converted_after_it_was_a_parameter_is_lost(option, lost):
    source = f"""\
import torch
from torch import nn

class Normalizer(nn.Module):
    def __init__(self, width, device):
        super().__init__()
        self.mean = nn.Parameter(torch.zeros(width){option}).to(device)
"""
    (finding,) = lint_source(source.encode(), "a.py")
    assert (finding.code, finding.location.line) == ("GCS102", 7)
    assert finding.message.endswith(lost)
