"""A wrong gradient without a custom Function stands at what autograd does not see."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from gradcheck_suite.verification.check import check_gradients


def through_data(x):
    y = torch.sigmoid(x)
    y.data[y.data < 0.5] = 0.1  # here
    return y


def through_numpy(x):
    y = torch.tanh(x)
    known = y.detach().numpy()
    np.clip(known, -0.3, 0.3, out=known)  # here
    return y * y


def under_no_grad(x):
    y = x + 0.0
    with torch.no_grad():
        y.mul_(3.0)  # here
    return y.sin()


def inside_a_helper(x):
    y = x.tanh()
    scaled(y)
    return y


def scaled(values):
    values.data.mul_(2.0)  # here


def swapped_weight(x):
    weight = nn.Parameter(torch.linspace(0.5, 1.5, 4).double())
    kept = weight.data
    weight.data = kept.round()
    out = x * weight
    weight.data = kept  # here
    return out


def cut_by_detach(x):
    return x * x.detach()  # here


def cut_by_no_grad(x):
    with torch.no_grad():
        scale = x.abs().amax()  # here
    return x / scale


def cut_by_item(x):
    return x * x.sum().item()  # here


WRONG = {
    one.__name__: one
    for one in (
        *(through_data, through_numpy, under_no_grad, inside_a_helper, swapped_weight),
        *(cut_by_detach, cut_by_no_grad, cut_by_item),
    )
}
LINES = Path(__file__).read_text(encoding="utf-8").splitlines()


def drawn():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(3, 4, generator=generator, dtype=torch.float64).requires_grad_()


@pytest.mark.parametrize("name", WRONG)
def test_the_finding_stands_at_what_autograd_does_not_see(name):
    finding = check_gradients(WRONG[name], drawn(), variations=()).findings[0]
    assert finding.location.path == __file__
    assert LINES[finding.location.line - 1].endswith("# here")
    told = "takes a part of it out" if name.startswith("cut") else "is overwritten there"
    assert told in finding.message


def test_initialising_a_parameter_is_no_hidden_write():
    def target(x):
        layer = nn.Linear(4, 2).double()
        return layer(x) * x[:, :1].detach()

    finding = check_gradients(target, drawn(), variations=()).findings[0]
    assert "overwritten" not in finding.message
    assert "x[:, :1].detach()" in LINES[finding.location.line - 1]


def test_of_several_cuts_none_is_blamed():
    def target(x):
        one = x.detach()
        two = x.exp().detach()
        return x * one * two

    finding = check_gradients(target, drawn(), variations=()).findings[0]
    assert "def target" in LINES[finding.location.line - 1]
    assert len(finding.related) == 2
    assert "out of the graph" not in finding.message


def test_recorded_writes_are_right_and_say_nothing():
    def target(x):
        y = x * 2.0
        y[0] = y[0] * 3.0
        y.mul_(x)
        return y.view(-1).clamp_(min=-1.0)

    assert check_gradients(target, drawn(), variations=()).findings == ()


def test_whoever_follows_lines_follows_them_afterwards():
    seen = []

    def follow(frame, event, argument):
        del frame, argument
        seen.append(event)

    before = sys.gettrace()
    sys.settrace(follow)
    try:
        check_gradients(cut_by_detach, drawn(), variations=())
        assert sys.gettrace() is follow
    finally:
        sys.settrace(before)
    assert seen


class Sine(torch.autograd.Function):
    """The sine, whose gradient is ``factor`` times the right one."""

    factor = 1.0

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @classmethod
    def backward(cls, ctx, grad_output):
        (x,) = ctx.saved_tensors
        return cls.factor * grad_output * x.cos()


class DoubledSine(Sine):
    factor = 2.0


class Temperature(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function
        self.log_tau = nn.Parameter(torch.tensor(-1.0, dtype=torch.float64))
        self.scale = nn.Parameter(torch.tensor(2.0, dtype=torch.float64))

    def forward(self, x):
        self.seen = self.scale.exp().item()
        tau = self.log_tau.exp().item()  # the temperature is cut
        return self.function.apply(x) * self.scale / tau


@pytest.mark.parametrize("function", [Sine, DoubledSine])
def test_a_function_is_not_blamed_for_what_the_module_cuts_off(function):
    report = check_gradients(Temperature(function), drawn(), order=1, variations=())
    found = {finding.evidence["input"]: finding for finding in report.findings}
    cut = found.pop("log_tau")
    assert "# the temperature is cut" in LINES[cut.location.line - 1]
    assert "no path in the graph leads to it" in cut.message
    assert "`item()` takes a part of it out of the graph there" in cut.message
    assert "made by" not in cut.message
    assert "scale" not in found
    for other in found.values():
        assert function is DoubledSine
        assert "made by" in other.message
    assert bool(found) is (function is DoubledSine)
