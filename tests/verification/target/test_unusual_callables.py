"""Callables that do what few would write on purpose: an answer or a clear error, no crash."""

from __future__ import annotations

import dataclasses
import functools
import random
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

from gradcheck_suite.errors import UsageError
from gradcheck_suite.verification import check_gradients


def statuses(report):
    return {verdict.status for verdict in report.verdicts}


def checked(function, *inputs, **options):
    return check_gradients(function, inputs, **options)


class Pair(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor


@dataclasses.dataclass
class Result:
    value: torch.Tensor
    note: str = "kept"


class Holder:
    def __init__(self, factor):
        self.factor = factor

    def scaled(self, x):
        return self.factor * x.sin()


class Halved(torch.autograd.Function):
    """Its backward is wrong, whatever is around it."""

    @staticmethod
    def forward(ctx, x):  # noqa: ARG004
        return 2 * x

    @staticmethod
    def backward(ctx, grad_output):  # noqa: ARG004
        return grad_output


def off_and_on(x):
    torch.set_grad_enabled(True)
    return x.sin()


def calls_backward(x):
    y = x.detach().clone().requires_grad_()
    with torch.enable_grad():
        (y**2).sum().backward()
    return x * y.grad


def slope(x):
    return torch.autograd.grad((x**3).sum(), x, create_graph=True)[0]


def toggles(x):
    constant = x.detach().requires_grad_()
    constant.requires_grad_(False)
    return x.sin() + 0.0 * constant


def generated(x):
    yield x.sin()
    yield x.cos()


RIGHT = {
    "changes the grad mode": off_and_on,
    "takes a gradient inside": slope,
    "returns its input": lambda x: x,
    "returns a view of its input": lambda x: x.view(-1)[1:],
    "returns a list of 300 tensors": lambda x: [x[0] * number for number in range(300)],
    "returns a namedtuple": lambda x: Pair(x.sin(), x.cos()),
    "returns a dataclass": lambda x: Result(x.sin()),
    "is a partial": functools.partial(torch.add, alpha=2.0, other=1.0),
    "is a bound method": Holder(3.0).scaled,
    "toggles requires_grad inside": toggles,
    "draws from numpy": lambda x: x * float(np.random.rand()),
    "draws from random": lambda x: x * random.random(),
    "draws from torch": lambda x: x * torch.rand(6),
}


@pytest.mark.sampled(every=13)
@pytest.mark.parametrize("name", RIGHT)
def test_what_is_right_passes(name, randn):
    report = checked(RIGHT[name], randn(6), variations=())
    assert report.findings == ()
    assert statuses(report) == {"pass"}
    assert torch.is_grad_enabled()


@pytest.mark.parametrize(
    "cut",
    [
        pytest.param(lambda base: base[:1].expand(3, 4), id="expanded"),
        pytest.param(lambda base: base[0, 0], id="0-dim"),
        pytest.param(lambda base: base[0, ::2], id="strided"),
    ],
)
def test_inputs_of_any_layout_are_taken(cut, randn):
    x = cut(randn(3, 4, requires_grad=False)).requires_grad_()
    right = checked(lambda x: x.sin() * x, x, variations=())
    assert right.findings == ()
    assert statuses(right) == {"pass"}
    assert not checked(Halved.apply, x, variations=()).ok


def test_inputs_that_share_storage_are_told(randn):
    base = randn(6, requires_grad=False)
    one, two = base[:4].requires_grad_(), base[2:].requires_grad_()
    report = checked(lambda a, b: (a * b).sin(), one, two, variations=())
    assert statuses(report) == {"pass"}
    assert any("share memory" in line for line in report.not_covered)


def test_an_empty_input_is_not_covered(randn):
    empty = torch.empty(0, 3, dtype=torch.float64, requires_grad=True)
    report = checked(lambda a, b: (a.sum() + b).sin(), empty, randn(3), variations=())
    by_input = {verdict.input: verdict.status for verdict in report.verdicts}
    assert by_input["a"] == "not covered"
    assert by_input["b"] == "pass"


def test_inference_tensors_are_checked_or_refused():
    with torch.inference_mode():
        x = torch.randn(4, dtype=torch.float64)
        w = torch.randn(4, dtype=torch.float64)
    y = torch.randn(4, dtype=torch.float64, requires_grad=True)
    report = checked(lambda y, w: (y * w).sin(), y, w, variations=())
    assert statuses(report) == {"pass"}
    with pytest.raises(UsageError, match="no input of"):
        checked(torch.sin, x)


def test_a_check_within_inference_mode_is_as_good(randn):
    x = randn(4)
    with torch.inference_mode():
        assert statuses(checked(torch.sin, x, variations=())) == {"pass"}
        assert not checked(Halved.apply, x, variations=()).ok


def test_a_generator_is_no_output(randn):
    with pytest.raises(UsageError, match="holds no tensor"):
        checked(generated, randn(3))


def test_a_fresh_leaf_is_no_gradient_of_the_input(randn):
    report = checked(lambda x: x.detach().clone().requires_grad_(), randn(3), variations=())
    assert not report.ok
    assert "pass" not in statuses(report)


def test_a_function_that_turns_gradients_off_for_good_never_passes(randn):
    def off(x):
        torch.set_grad_enabled(False)
        return x.sin()

    try:
        report = checked(off, randn(3), variations=())
    finally:
        left = torch.is_grad_enabled()
        torch.set_grad_enabled(True)
    assert left
    assert not report.ok or "pass" not in statuses(report)


def test_a_derivative_taken_inside_for_a_constant_is_wrong(randn):
    assert not checked(calls_backward, randn(4), variations=()).ok


def test_a_function_that_raises_off_the_point_is_not_passed(randn):
    x = randn(4)
    at = x.detach().clone()

    def only_here(y):
        if not torch.equal(y.detach(), at):
            raise ValueError("only here")
        return y.sin()

    report = checked(only_here, x, variations=())
    assert statuses(report) == {"inconclusive"}
    assert all(
        "raises ValueError at points around" in verdict.reason for verdict in report.verdicts
    )


def test_a_module_on_meta_is_refused():
    with pytest.raises(UsageError, match="meta device"):
        check_gradients(nn.Linear(3, 2, device="meta"), torch.randn(4, 3))


def test_copies_on_many_devices_are_refused():
    with pytest.raises(UsageError, match=r"check the module that it wraps, its attribute \.module"):
        check_gradients(nn.DataParallel(nn.Linear(3, 2)), torch.randn(4, 3))


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool])
def test_inputs_without_a_gradient_are_refused(dtype):
    with pytest.raises(UsageError, match="no inputs of floating-point or complex type"):
        checked(lambda x: x * 2, torch.ones(3, dtype=dtype))


def test_a_function_of_another_structure_on_each_call_is_refused(randn):
    calls = []

    def shifting(x):
        calls.append(None)
        return x.sin() if len(calls) % 2 else (x.sin(), x.cos())

    with pytest.raises(UsageError, match="returned other outputs on a second call"):
        checked(shifting, randn(3))
