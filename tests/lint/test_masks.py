"""GCS505: masks and one-hot outputs of a Function that look differentiable."""

from __future__ import annotations

import pytest

from gradcheck_lint.engine import lint_source

_FUNCTION = """\
import torch
import torch.nn.functional as F
from torch.autograd import Function

class Select(Function):
    @staticmethod
    def forward(ctx, x, codes):
        chosen = x.argmax(1)
        MADE
        ctx.save_for_backward(chosen)
        return chosen.float() * x, OUTPUT

    @staticmethod
    def backward(ctx, grad_output, grad_mask):
        (chosen,) = ctx.saved_tensors
        return grad_output * chosen, None
"""


@pytest.mark.parametrize(
    "made",
    [
        "mask = torch.zeros_like(x).scatter_(1, chosen.unsqueeze(1), 1.0)",
        "mask = torch.zeros_like(x).scatter(1, chosen.unsqueeze(1), value=1)",
        "mask = torch.zeros_like(x); mask.scatter_(1, chosen.unsqueeze(1), 1)",
        "mask = x.new_zeros(x.shape); mask[x > 0] = 1.0",
        "mask = torch.ones_like(x); mask.masked_fill_(x < 0, 0.0)",
        "mask = F.one_hot(chosen, 10).to(x.dtype)",
        "mask = F.one_hot(chosen, 10).view(-1, 10).float()",
        "mask = (x > 0).unsqueeze(0).type_as(x)",
        "mask = torch.where(x > 0, 1.0, 0.0)",
        "mask = torch.where(x > 0, torch.ones_like(x), torch.zeros_like(x))",
        "mask = x.round()",
    ],
)
def test_a_mask_that_backward_ignores(made):
    findings = _found(_FUNCTION.replace("MADE", made).replace("OUTPUT", "mask"))
    assert findings == [("GCS505", 11)]


@pytest.mark.parametrize("output", ["(x > 0).to(x.dtype)", "F.one_hot(chosen).float()"])
def test_a_mask_without_a_name(output):
    source = _FUNCTION.replace("MADE", "pass").replace("OUTPUT", output)
    assert _found(source) == [("GCS505", 11)]


@pytest.mark.parametrize(
    "made",
    [
        "mask = torch.zeros_like(x).scatter_(1, chosen.unsqueeze(1), x)",
        "mask = torch.zeros_like(x); mask.scatter_(1, chosen.unsqueeze(1), 1); mask.mul_(x)",
        "mask = torch.zeros_like(x); mask[0] = x[0]",
        "mask = torch.zeros_like(x); mask.scatter_(1, chosen, 1); mask += x",
        "mask = torch.zeros_like(x); torch.mul(x, 2, out=mask)",
        "mask = torch.zeros_like(x)",
        "mask = F.one_hot(chosen, 10)",
        "mask = (x > 0).to(x.device)",
        "mask = (x > 0).view(-1)",
        "mask = (x > 0).to(torch.int64)",
        "mask = torch.where(x > 0, x, 0.0)",
        "mask = torch.zeros_like(x).scatter_(1, chosen, 1); ctx.mark_non_differentiable(mask)",
    ],
)
def test_outputs_with_a_derivative_and_whole_numbers_are_none(made):
    assert _found(_FUNCTION.replace("MADE", made).replace("OUTPUT", "mask")) == []


def test_a_straight_through_one_hot_is_none():
    made = "mask = torch.zeros_like(x).scatter_(1, chosen.unsqueeze(1), 1.0)"
    source = _FUNCTION.replace("MADE", made).replace("OUTPUT", "mask")
    assert _found(source.replace("grad_output * chosen", "grad_output * chosen + grad_mask")) == []


def _found(source):
    findings = lint_source(source.encode(), "select.py")
    return [(found.code, found.location.line) for found in findings if found.code == "GCS505"]
