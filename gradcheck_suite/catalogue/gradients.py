"""Gradients that are wrong as such (GCS601 to 604, 608, 610)."""

from __future__ import annotations

from gradcheck_suite.catalogue._entry import Entry
from gradcheck_suite.severity import Severity

WRONG_GRADIENT = Entry(
    code="GCS601",
    slug="wrong-gradient",
    severity=Severity.ERROR,
    in_source=False,
    at_run_time=True,
    title="The analytic gradient differs from the numerical one",
    what="""
The gradient that backward computes differs from finite differences of the forward by more than the
error of those differences. The report names the input, the element, both values and the bound, and
where it can the kind of error: sign, constant factor, transpose, a missing term or reduction, one
element, zero.
""",
    why="""
Nothing raises. A gradient with the wrong size still descends, only worse; a wrong sign in one term
or one dead element can hide behind the other parameters for a whole training run.
""",
    example="""\
import torch
from torch.autograd import Function


class RMSNorm(Function):
    @staticmethod
    def forward(ctx, x):
        scale = x.pow(2).mean(dim=-1, keepdim=True).rsqrt()
        ctx.save_for_backward(x)
        return x * scale

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        scale = x.pow(2).mean(dim=-1, keepdim=True).rsqrt()
        return grad_output * scale
""",
    instead="""\
import torch
from torch.autograd import Function


class RMSNorm(Function):
    @staticmethod
    def forward(ctx, x):
        scale = x.pow(2).mean(dim=-1, keepdim=True).rsqrt()
        ctx.save_for_backward(x)
        return x * scale

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        scale = x.pow(2).mean(dim=-1, keepdim=True).rsqrt()
        along = (grad_output * x).mean(dim=-1, keepdim=True)
        return scale * (grad_output - x * along * scale**2)
""",
    detection="""
At run time: the derivative along random directions is compared with central differences whose own
error is measured (extrapolation, rounding, a term for kinks); a disagreement is traced to the
element. Where the measured error is too large for a decision, as at a kink or in a noisy function,
the verdict is inconclusive, never a pass. Only what was run is covered: other shapes and other
values may take other branches.

Severity: error.
""",
)

WRONG_SECOND_ORDER = Entry(
    code="GCS602",
    slug="wrong-second-order",
    severity=Severity.ERROR,
    in_source=False,
    at_run_time=True,
    title="First order is right, the gradient of the gradient is wrong",
    what="""
The gradient agrees with finite differences, but its own gradient (`create_graph=True`) does not
agree with finite differences of the gradient.
""",
    why="""
Gradient penalties, meta-learning, Hessian-vector products and second-order optimizers silently get
wrong values, while every first-order test passes. The cause is nearly always a Function whose
backward uses something that autograd did not record: a saved intermediate (GCS507), `.data`,
`.detach()` or NumPy (GCS504).
""",
    example="""\
from torch.autograd import Function


class Cube(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return 3 * x.detach() ** 2 * grad_output
""",
    instead="""\
from torch.autograd import Function


class Cube(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return 3 * x**2 * grad_output
""",
    detection="""
At run time: the gradient is itself treated as a function of the inputs and of the incoming
gradient and checked as for GCS601, after the first order has passed. A backward that raises when
differentiated twice, such as one marked `once_differentiable`, is reported as not covered.

Severity: error where second order was asked for; a warning where it was only probed.
""",
)

NONDETERMINISTIC_GRADIENT = Entry(
    code="GCS603",
    slug="nondeterministic-gradient",
    severity=Severity.ERROR,
    in_source=False,
    at_run_time=True,
    title="Two identical backward passes give different gradients",
    what="""
The same graph, backpropagated twice with the same incoming gradient, gives two different results.
""",
    why="""
Either backward keeps something from one call to the next, as in a buffer that is not cleared, and
then the gradient belongs to another step as well; or it adds up in an order that changes (atomic
additions on a GPU), and then runs cannot be reproduced bit for bit. The first is a mistake; the
second is noise that `torch.use_deterministic_algorithms(True)` removes or reports.
""",
    example="""\
import torch
from torch.autograd import Function

buffers = {}


class Double(Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, grad_output):
        shape = grad_output.shape
        if shape not in buffers:
            buffers[shape] = torch.zeros_like(grad_output)
        buffers[shape] += 2 * grad_output
        return buffers[shape].clone()
""",
    instead="""\
import torch
from torch.autograd import Function

buffers = {}


class Double(Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, grad_output):
        shape = grad_output.shape
        if shape not in buffers:
            buffers[shape] = torch.zeros_like(grad_output)
        buffers[shape].zero_()
        buffers[shape] += 2 * grad_output
        return buffers[shape].clone()
""",
    detection="""
At run time: one recorded graph is backpropagated repeatedly and the results are compared bit for
bit. A difference of a few roundings is told apart from a difference that matters. Each call is
given the same random numbers: a backward that draws its own is told as GCS601.

Severity: error beyond rounding; a note for rounding alone.
""",
)

NON_FINITE_GRADIENT = Entry(
    code="GCS604",
    slug="non-finite-gradient",
    severity=Severity.ERROR,
    in_source=True,
    at_run_time=True,
    title="NaN or infinity is born in backward",
    what="""
The forward is finite, and backward produces NaN or infinity. The report names the first operation
whose incoming gradient was finite and whose result was not.
""",
    why="""
At the edge of an operation's domain the slope is infinite: `sqrt(0)`, `0 ** 0.5`, `acos(1)`,
`log(0)`. Infinity times the zero gradient of the neighbouring operation is NaN, and one NaN makes
the whole parameter NaN at the next step. `torch.where` does not help: the branch not taken gets a
zero gradient, and zero times infinity is NaN. Neither does a clamp after the operation. The
argument must be made safe before it goes in.

`torch.linalg.vector_norm`, `cdist` and `std` are safe at zero; a norm written by hand is not.
""",
    example="""\
import torch


def pairwise_distance(a, b):
    square = (a[:, None] - b[None, :]).pow(2).sum(dim=-1)
    return torch.where(square > 0, square.sqrt(), 0.0)  # GCS604
""",
    instead="""\
import torch


def pairwise_distance(a, b):
    square = (a[:, None] - b[None, :]).pow(2).sum(dim=-1)
    safe = torch.where(square > 0, square, 1.0)
    return torch.where(square > 0, safe.sqrt(), 0.0)
""",
    detection="""
In source: `sqrt`, `log`, `acos` and the like inside a branch of `torch.where` whose condition is
there to exclude that operation's edge.

At run time: gradients are tested for finiteness after backward. On a hit the backward is followed
node by node to the first one with a finite gradient coming in and a non-finite one going out.

Severity: error at run time; a warning in source, where the values are unknown.
""",
)

DETACHED_OUTPUT = Entry(
    code="GCS608",
    slug="detached-output",
    severity=Severity.ERROR,
    in_source=False,
    at_run_time=True,
    title="An output depends on the input but does not require grad",
    what="""
An output changes when the input changes, yet it carries no graph. Often it is one of several, and
the others do.
""",
    why="""
A loss on that output trains nothing, and nothing raises as long as another term has a graph.
`torch.autograd.gradcheck` skips such outputs without a word when another output requires grad.
""",
    example="""\
def attention(query, key, value):
    weights = (query @ key.transpose(-2, -1)).softmax(dim=-1)
    entropy = -(weights * weights.log()).sum(dim=-1).detach()
    return weights @ value, entropy
""",
    instead="""\
def attention(query, key, value):
    weights = (query @ key.transpose(-2, -1)).softmax(dim=-1)
    entropy = -(weights * weights.log()).sum(dim=-1)
    return weights @ value, entropy
""",
    detection="""
At run time: the input is changed along a random direction and each floating-point output without a
graph is compared with its value before. Outputs that stay equal, and outputs of integer or bool
type, are not reported.

Severity: error; a warning where the output may be detached on purpose.
""",
)

NONLINEAR_BACKWARD = Entry(
    code="GCS610",
    slug="nonlinear-backward",
    severity=Severity.ERROR,
    in_source=False,
    at_run_time=True,
    title="backward is not linear in the incoming gradient",
    what="""
Twice the incoming gradient does not give twice the result: backward clamps, normalizes or ignores
`grad_output`.
""",
    why="""
A vector-Jacobian product is linear in the vector. If it is not, the gradient depends on how the
loss is scaled: `GradScaler`, a loss weight, a mean for a sum, or the number of micro-batches
changes the direction of training. `torch.autograd.gradcheck` passes, because it tests with unit
vectors only.

Gradient clipping inside backward may be meant; a tensor hook or `clip_grad_norm_` says so openly.
""",
    example="""\
from torch.autograd import Function


class Identity(Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output.clamp(-1, 1)
""",
    instead="""\
from torch.autograd import Function


class Identity(Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output
""",
    detection="""
At run time: backward of a u + b v is compared with a times backward of u plus b times backward of
v, for random u and v and for factors of very different size.

Severity: error.
""",
)

DTYPE_CHANGED = Entry(
    code="GCS612",
    slug="dtype-changed",
    severity=Severity.NOTE,
    in_source=False,
    at_run_time=True,
    title="A gradient changes its dtype on the way to the parameters",
    what="""
Part of the graph runs in another precision than the rest: a float64 constant or NumPy array has
turned all that follows into float64, or a cast has turned it into float16 or bfloat16.
""",
    why="""
Wider than meant, the part takes twice the memory and, on GPUs, many times as long. Narrower than
meant, gradients are rounded there, and in float16 those below 6e-8 become zero. Neither raises,
and the parameters' gradients have the parameters' dtype again. Under `torch.autocast`, or where a
loss is computed in float32 on purpose, it is as it should be.
""",
    example="""\
import torch

scale = torch.linspace(0.5, 2.0, 64, dtype=torch.float64)


def loss(model, x):
    return (model(x) * scale).square().mean()
""",
    instead="""\
import torch

scale = torch.linspace(0.5, 2.0, 64)


def loss(model, x):
    return (model(x) * scale).square().mean()
""",
    detection="""
At run time: `trace_graph` compares the dtype of the gradient that each node is given with that of
the gradients that it returns. All changes in one graph are one finding, which counts them and marks
their nodes.

Severity: note.
""",
)

ENTRIES = (
    WRONG_GRADIENT,
    WRONG_SECOND_ORDER,
    NONDETERMINISTIC_GRADIENT,
    NON_FINITE_GRADIENT,
    DETACHED_OUTPUT,
    NONLINEAR_BACKWARD,
    DTYPE_CHANGED,
)
