"""Gradients that change with how they are asked for (GCS605 to 607, 609, 611)."""

from __future__ import annotations

from gradcheck_suite.catalogue._entry import Entry
from gradcheck_suite.severity import Severity

FORWARD_MODE_MISMATCH = Entry(
    code="GCS605",
    slug="forward-mode-mismatch",
    severity=Severity.ERROR,
    in_source=False,
    at_run_time=True,
    title="Forward-mode and reverse-mode derivatives disagree",
    what="""
The Jacobian-vector product (`jvp`, forward mode) and the vector-Jacobian product (`backward`,
reverse mode) of one function are derivatives of different things.
""",
    why="""
Nothing raises. `torch.func.jvp`, `jacfwd`, `hessian` and `linearize` use the one, training uses
the other. Whoever switches modes for speed gets other numbers.
""",
    example="""\
from torch.autograd import Function


class Cube(Function):
    @staticmethod
    def forward(x):
        return x**3

    @staticmethod
    def setup_context(ctx, inputs, output):
        (x,) = inputs
        ctx.save_for_backward(x)
        ctx.save_for_forward(x)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return 3 * x**2 * grad_output

    @staticmethod
    def jvp(ctx, tangent):
        (x,) = ctx.saved_tensors
        return 3 * x * tangent
""",
    instead="""\
from torch.autograd import Function


class Cube(Function):
    @staticmethod
    def forward(x):
        return x**3

    @staticmethod
    def setup_context(ctx, inputs, output):
        (x,) = inputs
        ctx.save_for_backward(x)
        ctx.save_for_forward(x)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return 3 * x**2 * grad_output

    @staticmethod
    def jvp(ctx, tangent):
        (x,) = ctx.saved_tensors
        return 3 * x**2 * tangent
""",
    detection="""
At run time: for random directions u and v the numbers <u, J v> from forward mode and <J^T u, v>
from reverse mode must agree up to rounding. Which of the two is wrong follows from finite
differences. A function without forward mode is reported as not covered.

Severity: error.
""",
)

BATCHED_GRADIENT_MISMATCH = Entry(
    code="GCS606",
    slug="batched-gradient-mismatch",
    severity=Severity.ERROR,
    in_source=False,
    at_run_time=True,
    title="vmap of backward disagrees with a loop over it",
    what="""
Backpropagating a batch of incoming gradients at once (`torch.func.vmap`, `jacrev`,
`is_grads_batched=True`) gives another result than one at a time, or fails.
""",
    why="""
Per-sample gradients and Jacobians are wrong or impossible, while ordinary training is right. A
Function with its own `vmap` method that ignores `in_dims`, or works along the batch axis, is
silently wrong. A backward that branches on the values of a tensor raises under `vmap`.
""",
    example="""\
from torch.autograd import Function


class Cumulate(Function):
    @staticmethod
    def forward(x):
        return x.cumsum(0)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, grad_output):
        return Cumulate.apply(grad_output.flip(0)).flip(0)

    @staticmethod
    def vmap(info, in_dims, x):
        return Cumulate.apply(x), in_dims[0]
""",
    instead="""\
from torch.autograd import Function


class Cumulate(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x.cumsum(0)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, grad_output):
        return Cumulate.apply(grad_output.flip(0)).flip(0)
""",
    detection="""
At run time: several incoming gradients are sent through backward once under `vmap` and once in a
loop; the results must agree up to rounding. An operation that has no batching rule is reported as
not covered.

Severity: error.
""",
)

UNDEFINED_GRADIENT = Entry(
    code="GCS607",
    slug="undefined-gradient",
    severity=Severity.ERROR,
    in_source=False,
    at_run_time=True,
    title="backward cannot handle an output that nobody used",
    what="""
An output of a Function takes no part in the loss, so its incoming gradient is undefined. With
`ctx.set_materialize_grads(False)` backward is given None for it, and fails or computes something
wrong.
""",
    why="""
It works as long as every output is used and breaks when a caller ignores one: `TypeError:
unsupported operand type(s) for +: 'Tensor' and 'NoneType'` from within backward. By default torch
passes zeros in place of None, which is safe but costs memory.
""",
    example="""\
from torch.autograd import Function


class SumAndDifference(Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.set_materialize_grads(False)
        return a + b, a - b

    @staticmethod
    def backward(ctx, grad_sum, grad_difference):
        return grad_sum + grad_difference, grad_sum - grad_difference
""",
    instead="""\
from torch.autograd import Function


class SumAndDifference(Function):
    @staticmethod
    def forward(ctx, a, b):
        return a + b, a - b

    @staticmethod
    def backward(ctx, grad_sum, grad_difference):
        return grad_sum + grad_difference, grad_sum - grad_difference
""",
    detection="""
At run time: backward is run with each output left out in turn, and the result is compared with
that of an explicit zero gradient.

Severity: error.
""",
)

LAYOUT_DEPENDENT_GRADIENT = Entry(
    code="GCS609",
    slug="layout-dependent-gradient",
    severity=Severity.ERROR,
    in_source=False,
    at_run_time=True,
    title="The gradient depends on the memory layout of what backward is given",
    what="""
Backward is right for a contiguous incoming gradient and wrong, or fails, for one with the same
values in another layout: transposed, expanded or aliased.
""",
    why="""
Which layout arrives depends on the next operation: `.sum()` sends an expanded gradient, a
transpose a transposed one. Code that reads memory directly (`as_strided`, `data_ptr`, a CUDA or
Triton kernel) then uses the wrong elements, silently; `.view` raises. `torch.autograd.gradcheck`
sends contiguous gradients only.
""",
    example="""\
from torch.autograd import Function


class Scale(Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        ctx.layout = x.shape, x.stride()
        return x * factor

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output.as_strided(*ctx.layout) * ctx.factor, None
""",
    instead="""\
from torch.autograd import Function


class Scale(Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x * factor

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * ctx.factor, None
""",
    detection="""
At run time: one incoming gradient is sent through backward contiguous, transposed, expanded and
with padding between its elements, and likewise the inputs through forward; the results must agree
up to rounding. A kernel needs `grad_output.contiguous()` before it takes the pointer.

Severity: error.
""",
)

COMPILED_GRADIENT_MISMATCH = Entry(
    code="GCS611",
    slug="compiled-gradient-mismatch",
    severity=Severity.ERROR,
    in_source=False,
    at_run_time=True,
    title="torch.compile computes another gradient than eager mode",
    what="""
The same function with the same inputs has another gradient after `torch.compile`, beyond what
reordered rounding explains.
""",
    why="""
Nothing raises. The cause may be a branch on `torch.compiler.is_compiling()`, state that was frozen
into the compiled code, or a defect of the compiler. Debugging in eager mode shows nothing wrong.
""",
    example="""\
import torch


def normalize(x):
    if torch.compiler.is_compiling():
        return x / x.detach().norm(dim=-1, keepdim=True)
    return x / x.norm(dim=-1, keepdim=True)
""",
    instead="""\
def normalize(x):
    return x / x.norm(dim=-1, keepdim=True)
""",
    detection="""
At run time: the function is compiled and both versions are differentiated at the same inputs and
random state. Random functions, whose numbers differ between the two by design, are reported as not
covered.

Severity: error.
""",
)

ENTRIES = (
    FORWARD_MODE_MISMATCH,
    BATCHED_GRADIENT_MISMATCH,
    UNDEFINED_GRADIENT,
    LAYOUT_DEPENDENT_GRADIENT,
    COMPILED_GRADIENT_MISMATCH,
)
