from __future__ import annotations

import pytest

from gradcheck_lint.engine import lint_source


def _reported(body, head=""):
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    source = f"import torch\nimport torch.nn.functional as F\n{head}\ndef run(x, flag, n):\n"
    source += "    w = torch.randn(3, requires_grad=True)\n    h = w + 1\n" + lines
    findings = lint_source(source.encode(), "x.py", codes=["GCS103"])
    return [(finding.severity.value, finding.evidence.get("fix")) for finding in findings]


@pytest.mark.parametrize(
    "body",
    [
        "y = h * w\nh += 1\ny.sum().backward()",
        "y = h / (w * w)\nh.mul_(2)\ny.sum().backward()",
        "y = h ** 2\nh[0] = 0\ny.sum().backward()",
        "y = torch.sin(h)\nwith torch.no_grad():\n    h.zero_()\ny.sum().backward()",
        "y = h @ w\nh.clamp_(min=0)\ny.backward()",
        "y = F.mse_loss(h, h * 0)\nh += 1\ny.backward()",
        "y = w * 2\nz = (y * w).sum()\nwith torch.no_grad():\n    w -= 0.1\nz.backward()",
        "parts = torch.cat([h.pow(2), h])\nh += 1\nparts.sum().backward()",
    ],
)
def test_a_write_between_saving_and_backward_is_an_error(body):
    assert [severity for severity, _ in _reported(body)] == ["error"]


@pytest.mark.parametrize(
    "body",
    [
        "y = h * w\nif flag:\n    h += 1\ny.sum().backward()",
        "y = h * w\nfor i in range(n):\n    h.add_(1)\ny.sum().backward()",
        "y = h * w\nv = h.view(-1)\nv += 1\ny.sum().backward()",
    ],
)
def test_a_write_on_some_paths_or_through_a_view_is_likely(body):
    assert [severity for severity, _ in _reported(body)] == ["warning"]


@pytest.mark.parametrize(
    "body",
    [
        "y = h + w\nh += 1\ny.sum().backward()",
        "y = h * 2\nh += 1\ny.sum().backward()",
        "y = h * w\ny.sum().backward()\nh += 1",
        "y = h.clone() * w\nh += 1\ny.sum().backward()",
        "y = h * w\nh = h + 1\ny.sum().backward()",
        "y = (h * w).detach()\nh += 1\n(y * w).sum().backward()",
        "if flag:\n    y = h * w\nelse:\n    h += 1\n    y = h + w\ny.sum().backward()",
        "with torch.no_grad():\n    y = h * w\nh += 1\n(h * 2).sum().backward()",
        "n += 1\ny = n * w\nn += 1\ny.sum().backward()",
        "y = h * w\nh += 1\nreturn y",
        "y = h.sigmoid()\nh += 1\ny.sum().backward()",
        "y = h.relu()\nh.mul_(2)\ny.sum().backward()",
        "y = h * w\ntry:\n    h += 1\n    y.sum().backward()\nexcept RuntimeError:\n    pass",
    ],
)
def test_what_backward_does_not_need_may_be_written(body):
    assert _reported(body) == []


def test_under_autocast_a_copy_may_have_been_saved():
    body = "y = h * w\nh += 1\ny.sum().backward()"
    head = "from torch import autocast"
    assert [severity for severity, _ in _reported(body, head)] == ["warning"]
