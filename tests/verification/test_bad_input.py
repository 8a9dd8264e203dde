"""Bad input gets a clear error and never a pass."""

# ruff: noqa: ARG004 - forward and backward have to take what they do not use
from __future__ import annotations

import re
import warnings

import pytest
import torch
from torch import nn

from gradcheck_suite.errors import UsageError
from gradcheck_suite.verification import check_gradients

X = torch.randn(3, dtype=torch.float64, requires_grad=True)


def square(x):
    return x**2


CASES = [
    ((3, X), {}, "expected a function, a module or an autograd.Function to check, got int 3"),
    ((nn.Linear, X), {}, "Linear is a module class; give an instance of it, such as Linear(...)"),
    ((square, ()), {}, "square(x) can't be called with the given inputs: missing a required"),
    ((square, (X, X)), {}, "square(x) can't be called with the given inputs: too many positional"),
    ((square, {"y": X}), {}, "square(x) can't be called with the given inputs"),
    (
        (square, 3.0),
        {},
        "square has no inputs of floating-point or complex type to check; got no tensors",
    ),
    (
        (square, torch.arange(3)),
        {},
        "floating-point or complex type to check; got `x` of type int64. Give a float",
    ),
    ((square, torch.ones(3)), {}, "no input of square requires grad"),
    ((square, torch.ones(3)), {}, "set requires_grad_() on the inputs to check (`x`)"),
    ((square, X.detach() / 0), {}, "no input of square requires grad"),
    ((lambda _: None, X), {}, "returned NoneType None, which holds no tensor"),
    ((lambda x: x.argmax(), X), {}, "returns only int64 tensors, which have no gradient"),
    ((square, X), {"dtype": "float16"}, "dtype must be 'native', 'float32' or 'float64'"),
    ((square, X), {"dtype": torch.half}, "dtype must be 'native', 'float32' or 'float64'"),
    ((square, X), {"dtype": ["float64"]}, "dtype must be 'native', 'float32' or 'float64'"),
    ((square, X), {"probes": 0}, "probes must be a positive integer or None, got 0"),
    ((square, X), {"probes": True}, "probes must be a positive integer or None, got True"),
    ((square, X), {"probes": 2.0}, "probes must be a positive integer or None, got 2.0"),
    ((square, X), {"seed": -1}, "seed must be an integer from 0 to 2**32 - 1, got -1"),
    ((square, X), {"seed": None}, "seed must be an integer from 0 to 2**32 - 1, got None"),
    ((square, X), {"parameters": "no"}, "parameters must be True or False, got 'no'"),
    ((square, X), {"full": 1}, "full must be True or False, got 1"),
    ((square, X), {"order": 3}, "order must be 1, 2 or None, got 3"),
    ((square, X), {"order": True}, "order must be 1, 2 or None, got True"),
    ((square, X), {"time_limit": 0}, "time_limit must be a positive number of seconds or None"),
    ((square, X), {"time_limit": float("nan")}, "time_limit must be a positive number of seconds"),
    ((square, X), {"max_memory": 1.5}, "max_memory must be a positive number of bytes, got 1.5"),
    ((square, X), {"variations": "expanded"}, "variations must be a collection of names of"),
    ((square, X), {"kwargs": [X]}, "kwargs must map argument names to values"),
    (
        (square, {"x": X}),
        {"kwargs": {"x": X}},
        "argument 'x' is given both in inputs and in kwargs",
    ),
    ((square, {0: X}), {}, "a dict of inputs holds keyword arguments"),
    ((square, X), {"skip_outputs": "output"}, "skip_outputs must be a collection"),
    ((square, X), {"skip_outputs": ["y"]}, "skip_outputs names 'y', but square returns output"),
]


@pytest.mark.parametrize(("arguments", "options", "message"), CASES)
def test_bad_input_is_a_usage_error(arguments, options, message):
    with pytest.raises(UsageError, match=re.escape(message)):
        check_gradients(*arguments, **options)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_inputs_without_a_finite_value_are_refused(value):
    x = torch.full((3,), value, requires_grad=True)
    with pytest.raises(UsageError, match=r"`x` holds no finite value \(all 3 are NaN or Inf\)"):
        check_gradients(square, x)


@pytest.mark.parametrize("function", [square, torch.nansum, lambda x: x.softmax(0)])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_inputs_with_some_non_finite_values_never_pass(function, value):
    x = torch.tensor([1.0, value, 0.5, value], dtype=torch.float64, requires_grad=True)
    report = check_gradients(function, x)
    assert report.findings == ()
    assert {verdict.status for verdict in report.verdicts} <= {"inconclusive", "not covered"}
    assert any("2 of 4 values of `" in line for line in report.not_covered)


def test_a_wrong_gradient_beside_non_finite_values_is_found(wrong):
    x = torch.tensor([1.0, float("-inf"), 0.5], dtype=torch.float64, requires_grad=True)
    report = check_gradients(wrong.Percent, x)
    assert [verdict.status for verdict in report.verdicts] == ["fail"]


def test_a_device_that_is_not_there_is_named():
    if torch.cuda.is_available():
        pytest.skip("needs a machine without CUDA")
    with pytest.raises(UsageError, match="needs CUDA, which there is not here"):
        check_gradients(lambda x: x.cuda(), X)


def test_the_users_own_exception_arrives_unchanged():
    error = ZeroDivisionError("mine")

    def broken(x):
        raise error

    with pytest.raises(ZeroDivisionError) as caught:
        check_gradients(broken, X)
    assert caught.value is error


def test_an_exception_in_backward_arrives_unchanged():
    class Broken(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad_output):
            raise LookupError("in backward")

    with pytest.raises(LookupError, match="in backward"):
        check_gradients(Broken, X)


def test_a_cast_that_the_function_does_not_bear_says_so():
    weight = torch.randn(3, 3)
    x = torch.randn(2, 3, requires_grad=True)
    with pytest.raises(UsageError, match=r"does not run in float64: .*dtype='native'"):
        check_gradients(lambda x: x @ weight, x, dtype="float64")


def test_a_function_that_overwrites_its_input_is_refused():
    def overwrites(x):
        with torch.no_grad():
            x.mul_(2)
        return x**2

    with pytest.raises(UsageError, match=r"overwrites overwrites its input `x` in place"):
        check_gradients(overwrites, X)
    with pytest.raises(UsageError, match=r"writes in place into an input .*; give it a copy"):
        check_gradients(lambda x: x.mul_(2), X)


def test_a_constant_input_may_be_overwritten(randn):
    def uses_up(x, scratch):
        return x * scratch.add_(1.0)

    scratch = torch.ones(3, dtype=torch.float64)
    report = check_gradients(uses_up, (X, scratch))
    assert report.ok
    assert any("writes into its input `scratch`" in line for line in report.not_covered)
    assert scratch.tolist() == [1.0, 1.0, 1.0]


def test_a_function_that_returns_something_else_each_time_is_refused():
    calls = []

    def changes(x):
        calls.append(x)
        return (x, x * 2) if len(calls) % 2 else x * 2

    with pytest.raises(UsageError, match="returned other outputs on a second call"):
        check_gradients(changes, X)


def test_a_lazy_module_has_to_be_called_first():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls lazy modules experimental, once
        lazy = nn.LazyLinear(2)
    with pytest.raises(UsageError, match="parameter weight has no shape yet"):
        check_gradients(lazy, torch.randn(2, 3))


def test_a_type_without_arithmetic_says_so():
    x = torch.ones(3).to(torch.float8_e4m3fn).requires_grad_()
    with pytest.raises(UsageError, match=r"input `x` is float8_e4m3fn, which can't be checked"):
        check_gradients(lambda x: x.float(), x)
