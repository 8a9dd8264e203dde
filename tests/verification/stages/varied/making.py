"""Make a wrong Function and its correct twin, and their inputs.

``WRONG`` lists them: (name, function, twin, inputs, code, words of the message). Inputs are made
by a function of a seeded generator; they are as kind as a careless test's.
"""

# ruff: noqa: ARG005 - what draws inputs gets a generator, needed or not
from __future__ import annotations

import torch
from torch.autograd import Function


def make(forward, backward, name):
    """Make a Function of ``forward(*inputs)`` and ``backward(ctx, *grads)``."""

    def run(ctx, *inputs):
        ctx.save_for_backward(*[i for i in inputs if isinstance(i, torch.Tensor)])
        ctx.rest = [i for i in inputs if not isinstance(i, torch.Tensor)]
        return forward(*inputs)

    return type(
        name, (Function,), {"forward": staticmethod(run), "backward": staticmethod(backward)}
    )


def unary(forward, right, wrong, name):
    """Return a wrong elementwise Function and its twin; derivatives are functions of (g, x)."""

    def backward_with(derivative):
        def backward(ctx, g):
            return derivative(g, ctx.saved_tensors[0])

        return backward

    return (
        make(forward, backward_with(wrong), f"{name}Wrong"),
        make(forward, backward_with(right), f"{name}Right"),
    )


def memory(x):
    """Read a tensor's storage from its first element on, as a kernel does that takes a pointer."""
    return torch.as_strided(x, x.shape, torch.empty(x.shape).stride(), x.storage_offset())


def from_storage(x):
    """Read from the beginning of the storage, as one that forgets the offset does."""
    return torch.as_strided(x, x.shape, x.stride(), 0)


def draw(*shape, kind=torch.randn):
    """Return a function that draws one float64 input that requires grad."""

    def inputs(generator):
        return kind(*shape, generator=generator, dtype=torch.float64).requires_grad_()

    return inputs


def positive(*shape):
    """Draw inputs between 0.5 and 1.5."""

    def inputs(generator):
        drawn = torch.rand(*shape, generator=generator, dtype=torch.float64) + 0.5
        return drawn.requires_grad_()

    return inputs


def negative(*shape):
    """Draw inputs between -1.5 and -0.5."""

    def inputs(generator):
        drawn = -torch.rand(*shape, generator=generator, dtype=torch.float64) - 0.5
        return drawn.requires_grad_()

    return inputs


def constant(value, *shape):
    """Make a tensor of one value that requires grad."""
    return lambda generator: torch.full(shape, value, dtype=torch.float64).requires_grad_()


def indices(*values):
    """Make an integer tensor."""
    return lambda generator: torch.tensor(values)


def identity(size):
    """Make an identity matrix that requires grad."""
    return lambda generator: torch.eye(size, dtype=torch.float64).requires_grad_()


def data(*shape):
    """Draw one float64 input that does not require grad."""
    return lambda generator: torch.randn(*shape, generator=generator, dtype=torch.float64)


WRONG = []


def add(name, pair, inputs, code, words):
    """Add a wrong function with its twin to the bank."""
    WRONG.append((name, *pair, inputs, code, words))
