"""Reading ``.grad`` of what was computed from a leaf, and of what only looks like it."""

from __future__ import annotations

import pytest

from gradcheck_lint.engine import lint_source

_HEAD = """\
import torch

def run(model):
    x = torch.randn(3, requires_grad=True)
"""

_MISTAKES = [
    "z = x * 2",
    "z = 1 - x",
    "z = torch.sigmoid(x)",
    "z = x.clone()",
    "z = torch.cat([x, x]) + x",
    "z = model.features(x)",
    "z = model.backbone.layer4(x)",
]

_CORRECT = [
    "z = (x * 2).detach().requires_grad_()",
    "z = torch.empty_like(x, requires_grad=True)",
    "z = x.to('cpu')",
    "z = x.float()",
    "z = x.contiguous()",
    "z = x.requires_grad_(True)",
    "z = torch.nn.Parameter(x.clone())",
    "z = torch.zeros_like(x)\n    z.requires_grad = True",
    "with torch.no_grad():\n        z = x * 2\n    z.requires_grad_()",
    "z = model.prepare(x)",
    "z = helper.features(x)",
    "z = model.features()",
    "z = torch.ones(3).type_as(x).requires_grad_()",
    "z = x * 2\n    z.retain_grad()",
    "z = x * 2\n    z.grad = torch.ones(3)",
]


def _found(made: str, use: str) -> list[str]:
    source = f"{_HEAD}    {made}\n    model(z).sum().backward()\n    {use}\n"
    compile(source, "sample.py", "exec")
    return [finding.code for finding in lint_source(source.encode(), "sample.py")]


@pytest.mark.parametrize("made", _MISTAKES)
def test_of_what_is_computed(made: str) -> None:
    assert _found(made, "return z.grad.abs()") == ["GCS407"]
    assert _found(made, "print(z.grad)") == ["GCS407"]
    assert _found(made, "return x.grad.abs()") == []


@pytest.mark.parametrize("made", _CORRECT)
def test_of_what_may_be_a_leaf(made: str) -> None:
    assert _found(made, "return z.grad.abs()") == []


@pytest.mark.parametrize(
    "use",
    [
        "if z.grad is not None:\n        print(z.grad)",
        "return None if z.grad is None else z.grad.abs()",
        "assert z.grad is None",
        "z.grad = None",
    ],
)
def test_where_it_is_looked_at_first(use: str) -> None:
    assert _found("z = x * 2", use) == []
