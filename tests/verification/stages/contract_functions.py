"""Functions that break one clause of a backward's contract, each beside its correct twin.

``BROKEN`` lists them: (name, function, twin, shapes, code, words of the message).
"""

# ruff: noqa: ARG004 - forward and backward have to take what they do not use
from __future__ import annotations

import torch
from torch.autograd import Function


def memory(tensor):
    """Read a tensor's memory as if it were contiguous, as a kernel does that takes a pointer."""
    return torch.as_strided(
        tensor, tensor.shape, torch.empty(tensor.shape).stride(), tensor.storage_offset()
    )


class Sine(Function):
    """Correct; the others change its derivative."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * x.cos()


class Transposes(Sine):
    """Reads a transposed gradient as if it were contiguous."""

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        dense = grad_output.stride(-1) in {0, 1} or grad_output.stride(0) == 1
        given = grad_output if not dense or 0 in grad_output.stride() else memory(grad_output)
        return given * x.cos()


class Gaps(Sine):
    """Reads a gradient with gaps as if it had none."""

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        last = grad_output.stride(-1)
        return (memory(grad_output) if last == 2 else grad_output) * x.cos()


class Expands(Sine):
    """Reads as many numbers as there are elements, which an expanded gradient does not have."""

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return (memory(grad_output) if 0 in grad_output.stride() else grad_output) * x.cos()


class ExpandedRows(Sine):
    """Takes .view(-1) of a gradient whose rows are one."""

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        if grad_output.stride(0) == 0:
            return grad_output.view(-1).view(x.shape) * x.cos()
        return grad_output * x.cos()


class ExpandedSum(Sine):
    """Adds zero-stride gradients up once too often."""

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        factor = 2 if grad_output.stride() == (0, 0) else 1
        return factor * grad_output * x.cos()


class ViewsGradient(Sine):
    """Takes .view(-1) of the gradient."""

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output.view(-1).reshape(x.shape) * x.cos()


class LargestOnly(Sine):
    """Drops the small half of the gradient: homogeneous, and not additive."""

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        grad = grad_output * x.cos()
        return grad * (grad_output.abs() >= 1e-9 * grad_output.abs().sum())


class Ratio(Sine):
    """Divides by the gradient where it vanishes."""

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return torch.where(grad_output == 0, 1.0, grad_output) * x.cos()


class Pair(Function):
    """Correct, with two outputs."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin(), x.cos()

    @staticmethod
    def backward(ctx, grad_sin, grad_cos):
        (x,) = ctx.saved_tensors
        return grad_sin * x.cos() - grad_cos * x.sin()


class PairWithNone(Pair):
    """Asks for None and copes with it."""

    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x)
        return x.sin(), x.cos()

    @staticmethod
    def backward(ctx, grad_sin, grad_cos):
        (x,) = ctx.saved_tensors
        grad = None
        if grad_sin is not None:
            grad = grad_sin * x.cos()
        if grad_cos is not None:
            grad = -grad_cos * x.sin() if grad is None else grad - grad_cos * x.sin()
        return grad


class FailsOnNone(PairWithNone):
    """Asks for None and does arithmetic with it."""

    @staticmethod
    def backward(ctx, grad_sin, grad_cos):
        (x,) = ctx.saved_tensors
        return grad_sin * x.cos() - grad_cos * x.sin()


class GivesUpOnNone(PairWithNone):
    """Returns nothing at all if one of its gradients is None."""

    @staticmethod
    def backward(ctx, grad_sin, grad_cos):
        (x,) = ctx.saved_tensors
        if grad_sin is None or grad_cos is None:
            return None
        return grad_sin * x.cos() - grad_cos * x.sin()


class OnesForNone(PairWithNone):
    """Takes None for ones."""

    @staticmethod
    def backward(ctx, grad_sin, grad_cos):
        (x,) = ctx.saved_tensors
        grad_sin = torch.ones_like(x) if grad_sin is None else grad_sin
        grad_cos = torch.zeros_like(x) if grad_cos is None else grad_cos
        return grad_sin * x.cos() - grad_cos * x.sin()


class SingleNone(Sine):
    """Asks for None and does arithmetic with it, with one output."""

    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x)
        return x.sin()


class SingleNoneRight(SingleNone):
    """Asks for None and copes with it."""

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return None if grad_output is None else grad_output * x.cos()


class WritesFirst(Pair):
    """Adds the second gradient into the first."""

    @staticmethod
    def backward(ctx, grad_sin, grad_cos):
        (x,) = ctx.saved_tensors
        return grad_sin.mul_(x.cos()).sub_(grad_cos * x.sin())


class Doubles(Function):
    """Doubles an intermediate in place, and says so."""

    @staticmethod
    def forward(ctx, x):
        x.mul_(2)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx, grad_output):
        return 2 * grad_output


class DoublesSilently(Function):
    """Doubles an intermediate in place without saying so."""

    @staticmethod
    def forward(ctx, x):
        x.mul_(2)
        return x.clone()

    @staticmethod
    def backward(ctx, grad_output):
        return 2 * grad_output


class MaskOutput(Function):
    """Returns a float mask that requires grad."""

    @staticmethod
    def forward(ctx, x):
        mask = (x > 0).to(x.dtype)
        ctx.save_for_backward(mask)
        return x * mask, mask

    @staticmethod
    def backward(ctx, grad_output, _):
        (mask,) = ctx.saved_tensors
        return grad_output * mask


class MarkedMask(MaskOutput):
    """Returns a float mask and marks it."""

    @staticmethod
    def forward(ctx, x):
        mask = (x > 0).to(x.dtype)
        ctx.save_for_backward(mask)
        ctx.mark_non_differentiable(mask)
        return x * mask, mask


def inside(function):
    """Put a Function into the middle of a graph, after which its incoming gradient is our own."""

    def composed(x):
        found = function.apply(1.5 * x)
        outputs = found if isinstance(found, tuple) else (found,)
        return tuple(output.tanh() * 2.0 for output in outputs)

    return composed


def before(function):
    """Give a Function something other than a leaf."""
    return lambda x: function.apply(1.5 * x)


MATRIX = (4, 6)


class RightOnce(Sine):
    """Right the first time that it runs on a graph, and wrong in the same way ever after."""

    @staticmethod
    def backward(ctx, grad):
        ctx.runs = min(getattr(ctx, "runs", 0) + 1, 2)
        return Sine.backward(ctx, grad) * ctx.runs


BROKEN = [
    ("right_once", RightOnce, Sine, MATRIX, "GCS603", "run again on the same graph"),
    ("transposes", Transposes, Sine, MATRIX, "GCS609", "for a transposed incoming gradient"),
    ("gaps", Gaps, Sine, MATRIX, "GCS609", "for a strided incoming gradient"),
    ("expands", Expands, Sine, MATRIX, "GCS609", "raises for an expanded incoming gradient"),
    ("expanded_rows", ExpandedRows, Sine, MATRIX, "GCS609", "raises for an expanded incoming"),
    ("expanded_sum", ExpandedSum, Sine, MATRIX, "GCS609", "for an expanded incoming gradient"),
    ("views", ViewsGradient, Sine, MATRIX, "GCS609", "raises for a transposed incoming gradient"),
    ("zeros", Ratio, Sine, MATRIX, "GCS610", "backward(g1) + backward(g - g1)"),
    ("none_two", FailsOnNone, PairWithNone, MATRIX, "GCS607", "raises where one of its outputs"),
    ("none_gives_up", GivesUpOnNone, PairWithNone, MATRIX, "GCS607", "gives another gradient"),
    ("none_ones", OnesForNone, Pair, MATRIX, "GCS607", "gives another gradient"),
    ("none_one", SingleNone, SingleNoneRight, MATRIX, "GCS607", "for an undefined gradient"),
    ("writes_first", WritesFirst, Pair, MATRIX, "GCS506", "writes into the"),
    ("silent_write", before(DoublesSilently), before(Doubles), MATRIX, "GCS503", "writes into its"),
    ("mask", MaskOutput, MarkedMask, MATRIX, "GCS505", "holds whole numbers"),
    (
        "inside_transposes",
        inside(Transposes),
        inside(Sine),
        MATRIX,
        "GCS609",
        "Transposes.backward",
    ),
    ("inside_gaps", inside(Gaps), inside(Sine), MATRIX, "GCS609", "Gaps.backward gives"),
    ("inside_views", inside(ViewsGradient), inside(Sine), MATRIX, "GCS609", "ViewsGradient"),
    ("inside_none", inside(FailsOnNone), inside(PairWithNone), MATRIX, "GCS607", "FailsOnNone.b"),
    ("inside_writes", inside(WritesFirst), inside(Pair), MATRIX, "GCS506", "WritesFirst.backward"),
]
