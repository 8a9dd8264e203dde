"""Property tests of custom Functions, as docs/strategies.md tells users to write them.

Each has a twin with a mistake of the kind that one kind point does not show.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import gradcheck_suite as gs
from gradcheck_suite.strategies import broadcastable_shapes, cotangents_like, shapes, tensors


class Scale(torch.autograd.Function):
    """x * gain, where gain may broadcast."""

    @staticmethod
    def forward(ctx, x, gain):
        ctx.save_for_backward(x, gain)
        return x * gain

    @staticmethod
    def backward(ctx, grad_output):
        x, gain = ctx.saved_tensors
        return grad_output * gain, (grad_output * x).sum_to_size(gain.shape)


class MeanScale(Scale):
    """The same, with a mean for the sum: right where nothing is broadcast."""

    @staticmethod
    def backward(ctx, grad_output):
        x, gain = ctx.saved_tensors
        grad, count = grad_output * x, grad_output.numel() // max(gain.numel(), 1)
        return grad_output * gain, grad.sum_to_size(gain.shape) / count


class Leaky(torch.autograd.Function):
    """A leaky ReLU."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.where(x > 0, x, 0.1 * x)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return torch.where(x > 0, grad_output, 0.1 * grad_output)


class PositiveLeaky(Leaky):
    """Its backward is right for positive values only."""

    @staticmethod
    def backward(ctx, grad_output):  # noqa: ARG004
        return grad_output


class Rows(torch.autograd.Function):
    """Log-sum-exp of each row."""

    @staticmethod
    def forward(ctx, x):
        output = x.logsumexp(-1)
        ctx.save_for_backward(x, output)
        return output

    @staticmethod
    def backward(ctx, grad_output):
        x, output = ctx.saved_tensors
        return grad_output.unsqueeze(-1) * (x - output.unsqueeze(-1)).exp()


class FlatRows(Rows):
    """Reads its saved input as if it were contiguous."""

    @staticmethod
    def backward(ctx, grad_output):
        x, output = ctx.saved_tensors
        raw = x.as_strided(x.shape, torch.empty(x.shape).stride())
        return grad_output.unsqueeze(-1) * (raw - output.unsqueeze(-1)).exp()


def few(function):
    """Draw few examples, without the search for the smallest."""
    phases = (Phase.explicit, Phase.generate)
    return settings(max_examples=25, deadline=None, database=None, phases=phases, derandomize=True)(
        function
    )


def quick(function, inputs):
    gs.check_gradients(function, inputs, order=1, variations=()).raise_for_findings()


@pytest.mark.parametrize(("function", "right"), [(Scale, True), (MeanScale, False)])
def test_a_gain_that_broadcasts(function, right):
    @few
    @given(data=st.data())
    def holds(data):
        shape = data.draw(shapes(min_dims=1, max_dims=3))
        quick(
            function, (data.draw(tensors(shape)), data.draw(tensors(broadcastable_shapes(shape))))
        )

    expect(holds, right)


@pytest.mark.parametrize(("function", "right"), [(Leaky, True), (PositiveLeaky, False)])
def test_values_of_both_signs(function, right):
    @few
    @given(x=tensors(shapes(min_dims=0, max_dims=2)))
    def holds(x):
        quick(function, (x,))

    expect(holds, right)


@pytest.mark.parametrize(("function", "right"), [(Rows, True), (FlatRows, False)])
def test_inputs_and_incoming_gradients_of_any_layout(function, right):
    @few
    @given(data=st.data())
    def holds(data):
        x = data.draw(tensors(shapes(min_dims=2, max_dims=2), elements=st.floats(-2.0, 2.0)))
        output = function.apply(x)
        cotangent = data.draw(cotangents_like(output))
        (grad,) = torch.autograd.grad(output, x, cotangent)
        plain = x.detach().clone(memory_format=torch.contiguous_format).requires_grad_()
        (expected,) = torch.autograd.grad(plain.logsumexp(-1), plain, cotangent)
        torch.testing.assert_close(grad, expected)
        quick(function, (x,))

    expect(holds, right)


def expect(holds, right):
    if right:
        holds()
    else:
        with pytest.raises((gs.FindingsError, AssertionError, RuntimeError)):
            holds()
