"""The check that recording makes in torch's place raises torch's own error, word for word."""

from __future__ import annotations

import contextlib

import pytest
import torch

import gradcheck_suite as gs


def output_written(x):
    y = x.tanh()
    y.add_(1)
    return y


def output_of_an_overload_written(x):
    y = x.sum(0)
    result = y * y
    y.add_(1)
    return result, y


def output_of_a_numbered_op_written(x):
    y = torch.celu(x)
    result = y.exp()
    result.mul_(2)
    return result


def leaf_without_gradient_written(x):
    weight = torch.ones(3)
    result = x * weight
    weight.add_(1)
    return result


def leaf_written(x):
    result = x.pow(3)
    with torch.no_grad():
        x.mul_(2)
    return result


def part_of_a_double_written(x):
    y = x.double() * 2
    result = y.pow(3)
    y[0] = 0
    return result, y


def view_written_by_its_base(x):
    y = x * 2
    result = y.view(3, 2).exp()
    result.view(-1).mul_(1)
    return result


@pytest.mark.parametrize("anomaly", [False, True])
@pytest.mark.parametrize(
    "spoilt",
    [
        output_written,
        output_of_an_overload_written,
        output_of_a_numbered_op_written,
        leaf_without_gradient_written,
        leaf_written,
        part_of_a_double_written,
        view_written_by_its_base,
    ],
)
@pytest.mark.filterwarnings("ignore:Error detected in:UserWarning")
def test_the_error_is_torchs_own(spoilt, anomaly):
    def message(around):
        x = torch.ones(2, 3, requires_grad=True)
        with torch.autograd.set_detect_anomaly(anomaly, check_nan=False), around:
            made = spoilt(x)  # torch names what a tensor has become, where it lives on
            result = made[0] if isinstance(made, tuple) else made
            with pytest.raises(RuntimeError, match="modified by an inplace operation") as caught:
                result.sum().backward()
        return str(caught.value)

    assert message(gs.record()) == message(contextlib.nullcontext())
