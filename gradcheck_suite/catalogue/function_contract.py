"""What a custom autograd.Function promises (GCS5xx)."""

from __future__ import annotations

from gradcheck_suite.catalogue._entry import Entry
from gradcheck_suite.severity import Severity

BACKWARD_ARITY = Entry(
    code="GCS501",
    slug="backward-arity",
    severity=Severity.ERROR,
    in_source=True,
    at_run_time=True,
    title="backward returns too few gradients for the inputs of forward",
    what="""
The backward of an `autograd.Function` returns fewer values than forward has inputs (not counting
`ctx`). Each input needs one, in order; None stands for an input without a gradient.
""",
    why="""
Backward raises `RuntimeError: function ScaleBackward returned an incorrect number of gradients
(expected 2, got 1)`, also when the missing gradient is that of a number or of a tensor that does
not require grad. Nothing shows in the forward, so a test without backward passes. More values than
inputs are accepted if the surplus is None.
""",
    example="""\
from torch.autograd import Function


class Scale(Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x * factor

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * ctx.factor  # GCS501
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
In source: the parameters of forward are compared with the values of every `return` of backward. A
return value that is not a tuple display or a single expression, and a forward with `*args`, are
left alone.

At run time: torch's exception is the proof.

Severity: error for too few; a note for surplus None values.
""",
)

LEGACY_FUNCTION = Entry(
    code="GCS502",
    slug="legacy-function",
    severity=Severity.ERROR,
    in_source=True,
    at_run_time=True,
    title="autograd.Function with instance methods, called as Fn()(x)",
    what="""
A Function in the style of early torch: forward and backward are instance methods, data lives on
`self`, and an instance is called.
""",
    why="""
The call raises `RuntimeError: Legacy autograd function with non-static forward method is
deprecated`. A missing `@staticmethod` alone does no harm: used through `.apply` such a Function
works and gives the right gradient.
""",
    example="""\
from torch.autograd import Function


class Scale(Function):
    def __init__(self, factor):
        self.factor = factor

    def forward(self, x):
        return x * self.factor

    def backward(self, grad_output):
        return grad_output * self.factor


def double(x):
    return Scale(2.0)(x)  # GCS502
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


def double(x):
    return Scale.apply(x, 2.0)
""",
    detection="""
In source: an instance of a Function subclass is made and called, or the class keeps its data on
`self` in `__init__`.

At run time: torch's exception is the proof.

Severity: error where an instance is called, else warning.
""",
)

MISSING_MARK_DIRTY = Entry(
    code="GCS503",
    slug="missing-mark-dirty",
    severity=Severity.ERROR,
    in_source=True,
    at_run_time=True,
    title="forward changes an input in place without ctx.mark_dirty",
    what="""
The forward of a Function writes to one of its inputs and does not call `ctx.mark_dirty` with it.
""",
    why="""
Forward runs without recording, so none of the usual checks apply. The caller's tensor changes
under its old `grad_fn`: whatever uses it afterwards is differentiated as if the Function had never
run, silently wrong. Even a leaf that requires grad is overwritten without the error that `x -= 1`
would give. An error comes only if an earlier operation had saved the tensor.
""",
    example="""\
from torch.autograd import Function


class ShiftedExp(Function):
    @staticmethod
    def forward(ctx, x):
        x -= 1  # GCS503
        output = x.exp()
        ctx.save_for_backward(output)
        return output

    @staticmethod
    def backward(ctx, grad_output):
        (output,) = ctx.saved_tensors
        return grad_output * output
""",
    instead="""\
from torch.autograd import Function


class ShiftedExp(Function):
    @staticmethod
    def forward(ctx, x):
        output = (x - 1).exp()
        ctx.save_for_backward(output)
        return output

    @staticmethod
    def backward(ctx, grad_output):
        (output,) = ctx.saved_tensors
        return grad_output * output
""",
    detection="""
In source: an in-place method, augmented or subscript assignment on a parameter of forward, or on a
view of it, and no `mark_dirty` of that parameter. A Function that is meant to work in place has to
return the marked input.

At run time: an input's version or bits differ before and after the call and it is not marked.

Severity: error where every path shows it, else warning.
""",
)

MISSING_ONCE_DIFFERENTIABLE = Entry(
    code="GCS504",
    slug="missing-once-differentiable",
    severity=Severity.WARNING,
    in_source=True,
    at_run_time=False,
    title="backward leaves autograd but is not marked once_differentiable",
    what="""
A backward computes with NumPy, `.data`, `.detach()` or an extension. With respect to what left
autograd its result is a constant, and it does not say so.
""",
    why="""
First-order gradients are right. A gradient of the gradient (`create_graph=True`: penalties,
meta-learning, Hessians) misses terms and is wrong without a word. With `@once_differentiable` torch
raises `trying to differentiate twice a function that was marked with @once_differentiable`
wherever the incoming gradient has a graph: below any further layer with parameters, but not if the
output is only summed.
""",
    example="""\
import numpy as np
import torch
from torch.autograd import Function


class Sine(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.from_numpy(np.sin(x.detach().numpy()))

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        slope = np.cos(x.detach().numpy())  # GCS504
        return grad_output * torch.from_numpy(slope)
""",
    instead="""\
import numpy as np
import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable


class Sine(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.from_numpy(np.sin(x.detach().numpy()))

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * torch.from_numpy(np.cos(x.detach().numpy()))
""",
    detection="""
In source: a backward that calls `.numpy()`, reads `.data`, detaches a tensor or calls an imported
extension, without the decorator. The decorator belongs below `@staticmethod`.

At run time the wrong second derivative itself is GCS602.

Severity: warning; most code never differentiates twice.
""",
    fixable=True,
)

OUTPUT_WRONGLY_DIFFERENTIABLE = Entry(
    code="GCS505",
    slug="output-wrongly-differentiable",
    severity=Severity.WARNING,
    in_source=True,
    at_run_time=True,
    title="A mask or index output is not marked non-differentiable",
    what="""
A Function returns a mask, counts or indices as a floating-point tensor, its backward ignores that
output's gradient, and forward does not call `ctx.mark_non_differentiable`.
""",
    why="""
The output claims to require grad. A loss built on it backpropagates and delivers zeros: no error,
no learning. Marked, it does not require grad, and a backward on it alone raises. Outputs of integer
and bool type are not concerned; torch marks them itself.
""",
    example="""\
import torch
from torch.autograd import Function


class Threshold(Function):
    @staticmethod
    def forward(ctx, x, level):
        mask = (x > level).to(x.dtype)
        ctx.save_for_backward(mask)
        return x * mask, mask  # GCS505

    @staticmethod
    def backward(ctx, grad_output, grad_mask):
        (mask,) = ctx.saved_tensors
        return grad_output * mask, None
""",
    instead="""\
import torch
from torch.autograd import Function


class Threshold(Function):
    @staticmethod
    def forward(ctx, x, level):
        mask = (x > level).to(x.dtype)
        ctx.save_for_backward(mask)
        ctx.mark_non_differentiable(mask)
        return x * mask, mask

    @staticmethod
    def backward(ctx, grad_output, grad_mask):
        (mask,) = ctx.saved_tensors
        return grad_output * mask, None
""",
    detection="""
In source: an output of forward comes from a comparison, `argmax`, `sort` indices, `round` or
`sign`, is converted to a floating-point type, and backward does not use its gradient.

At run time: an output that requires grad is constant around the inputs, and the Function's
backward returns the same whatever gradient it is given for it.

Severity: warning.
""",
)

GRAD_OUTPUT_MODIFIED = Entry(
    code="GCS506",
    slug="grad-output-modified",
    severity=Severity.ERROR,
    in_source=True,
    at_run_time=True,
    title="backward writes into the gradient it was given",
    what="""
The backward of a Function changes `grad_output` in place: `grad_output[mask] = 0`,
`grad_output.mul_(...)`, `grad_output *= ...`.
""",
    why="""
The engine may hand the same tensor to several nodes. In `x + f(x)` both branches get one gradient,
and the write of one changes what the other sees: the residual branch is masked as well, silently
wrong. A gradient that the caller passed to `backward(gradient)` is overwritten too. After a plain
`.sum()` the gradient is expanded, and in-place arithmetic on it raises.
""",
    example="""\
from torch.autograd import Function


class Relu(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        grad_output[x < 0] = 0  # GCS506
        return grad_output
""",
    instead="""\
from torch.autograd import Function


class Relu(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output.masked_fill(x < 0, 0)
""",
    detection="""
In source: an in-place operation on a parameter of backward or on a view of one. A `clone()` of it
may be written to.

At run time: the incoming gradient's version or bits differ before and after the call.

Severity: error where every path shows it, else warning.
""",
)

SAVED_INTERMEDIATE = Entry(
    code="GCS507",
    slug="saved-intermediate",
    severity=Severity.WARNING,
    in_source=True,
    at_run_time=True,
    title="An intermediate of forward is saved: double backward is wrong",
    what="""
The forward of a Function saves a tensor that is neither an input nor an output, and backward
computes with it.
""",
    why="""
Forward records nothing, so the saved intermediate has no graph: to a second derivative it is a
constant. First-order gradients are right. With `create_graph=True` the terms through it are
missing, silently; if no other term is left, torch raises `does not require grad`.
""",
    example="""\
import torch
from torch.autograd import Function


class Sigmoid(Function):
    @staticmethod
    def forward(ctx, x):
        exponential = torch.exp(-x)
        ctx.save_for_backward(exponential)  # GCS507
        return 1 / (1 + exponential)

    @staticmethod
    def backward(ctx, grad_output):
        (exponential,) = ctx.saved_tensors
        return grad_output * exponential / (1 + exponential) ** 2
""",
    instead="""\
import torch
from torch.autograd import Function


class Sigmoid(Function):
    @staticmethod
    def forward(ctx, x):
        output = 1 / (1 + torch.exp(-x))
        ctx.save_for_backward(output)
        return output

    @staticmethod
    def backward(ctx, grad_output):
        (output,) = ctx.saved_tensors
        return grad_output * output * (1 - output)
""",
    detection="""
In source: an argument of `save_for_backward` that is computed in forward from an input and not
returned, used in arithmetic of backward, where backward is not marked `once_differentiable`.
Masks, indices and other tensors with zero derivative may be saved.

At run time: the second derivative is compared with differences of the first (GCS602), and the
Function's saved tensors are looked through.

Severity: warning; it concerns double backward only.
""",
)

NONE_GRADIENT = Entry(
    code="GCS508",
    slug="none-gradient",
    severity=Severity.ERROR,
    in_source=True,
    at_run_time=True,
    title="backward returns None or zeros for an input that needs a gradient",
    what="""
A Function's backward returns None, or zeros, for an input through which the output depends on a
parameter. Often the indices of `ctx.needs_input_grad` are off by one.
""",
    why="""
None means "no gradient" and is accepted for every input. The parameter's `.grad` stays None, the
optimizer skips it, nothing raises. `needs_input_grad` has one entry per input of forward, not
counting `ctx`. Crossed indices show only where not all inputs need a gradient, as in the first
layer, whose input is data.
""",
    example="""\
from torch.autograd import Function


class Linear(Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight.t()

    @staticmethod
    def backward(ctx, grad_output):
        x, weight = ctx.saved_tensors
        grad_x = grad_weight = None
        if ctx.needs_input_grad[0]:  # GCS508
            grad_weight = grad_output.t() @ x
        if ctx.needs_input_grad[1]:  # GCS508
            grad_x = grad_output @ weight
        return grad_x, grad_weight
""",
    instead="""\
from torch.autograd import Function


class Linear(Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight.t()

    @staticmethod
    def backward(ctx, grad_output):
        x, weight = ctx.saved_tensors
        grad_x = grad_weight = None
        if ctx.needs_input_grad[0]:
            grad_x = grad_output @ weight
        if ctx.needs_input_grad[1]:
            grad_weight = grad_output.t() @ x
        return grad_x, grad_weight
""",
    detection="""
In source: a `needs_input_grad` index guards the value that is returned at another position.

At run time: an input requires grad, small changes of it change the output, and backward returned
None or zeros for it.

Severity: error when measured or when the indices are crossed; else warning.
""",
)

ENTRIES = (
    BACKWARD_ARITY,
    LEGACY_FUNCTION,
    MISSING_MARK_DIRTY,
    MISSING_ONCE_DIFFERENTIABLE,
    OUTPUT_WRONGLY_DIFFERENTIABLE,
    GRAD_OUTPUT_MODIFIED,
    SAVED_INTERMEDIATE,
    NONE_GRADIENT,
)
