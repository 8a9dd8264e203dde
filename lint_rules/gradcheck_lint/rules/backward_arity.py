"""GCS501: backward returns too few gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from gradcheck_lint.model.function_class import function_with, has_other_decorator, returns
from gradcheck_lint.model.gradient_count import GradientCount
from gradcheck_lint.rules._rule import Invalid, Rule, Valid, Violation
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel


class BackwardArity(Rule):
    """A backward returns fewer gradients than forward has inputs."""

    entry = catalogue.BACKWARD_ARITY

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield every return of a backward that has too few values."""
        known = function_with(function, "backward", "vjp")
        if known is None or known.inputs is None or known.forward is None or not known.is_static:
            return
        scopes = function.module.scopes
        if any(has_other_decorator(method, scopes) for method in (function.scope, known.forward)):
            return
        needed = sum(not item.has_default for item in known.inputs)
        cotangents = frozenset(item.name for item in known.cotangents)
        count = GradientCount(function.scope, cotangents, scopes)
        for node in returns(function.scope):
            given = count.of(node.value)
            if given is not None and given < needed:
                yield Violation(
                    node,
                    f"backward returns {given} gradient{'s' * (given != 1)} for the {needed} "
                    "inputs of forward: torch raises a RuntimeError in backward()",
                    Severity.ERROR,
                    "return one value for each input, None where there is no gradient",
                    ((known.forward.node, f"forward takes {needed} inputs besides ctx"),),
                )

    invalid: ClassVar[tuple[Invalid, ...]] = (
        Invalid(
            """\
import torch
from torch.autograd import Function

class Scale(Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x * factor

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * ctx.factor
""",
            lines=(12,),
        ),
        Invalid(
            """\
import torch

class Affine(torch.autograd.Function):
    @staticmethod
    def forward(x, w, b):
        return x * w + b

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, w, b = inputs
        ctx.save_for_backward(x, w)

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g * w, g * x
""",
            lines=(16,),
        ),
        Invalid(
            """\
import torch

class Hardswish(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, inplace):
        ctx.save_for_backward(x)
        return x * (x + 3).clamp(0, 6) / 6

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        if not ctx.needs_input_grad[0]:
            return None
        grad_input = grad_output * (x / 3 + 0.5).clamp(0, 1)
        grad_input[x < -3] = 0
        return grad_input

class Step(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, step, low, high):
        ctx.save_for_backward(x)
        return (x / step).round().clamp(low, high) * step

    @staticmethod
    def backward(ctx, grad):
        grad_step = torch.where(grad > 0, grad, 0.0)
        grads = (grad, grad_step, None)
        return grads
""",
            lines=(13, 16, 28),
        ),
    )

    valid: ClassVar[tuple[Valid, ...]] = (
        Valid(
            """\
import torch
from torch.autograd import Function

class Scale(Function):
    @staticmethod
    def forward(ctx, x, factor=1.0):
        ctx.factor = factor
        return x * factor

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * ctx.factor, None, None
""",
            why="surplus None values are accepted",
        ),
        Valid(
            """\
import torch
from torch.autograd import Function

class Cat(Function):
    @staticmethod
    def forward(ctx, dim, *tensors):
        ctx.sizes = [len(t) for t in tensors]
        return torch.cat(tensors, dim)

    @staticmethod
    def backward(ctx, grad_output):
        return None, *grad_output.split(ctx.sizes)
""",
            why="any number of inputs",
        ),
        Valid(
            """\
import torch
from torch.autograd import Function

class Cat(Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.sizes = [len(a), len(b)]
        return torch.cat((a, b))

    @staticmethod
    def backward(ctx, grad_output):
        if ctx.sizes[0] == ctx.sizes[1]:
            return grad_output.chunk(2)
        return grad_output.split(ctx.sizes)

class Add(Function):
    @staticmethod
    def forward(ctx, a, b):
        return a + b

    @staticmethod
    def backward(ctx, grad_output):
        grads = (grad_output,)
        grads += (grad_output,)
        more = (grad_output,)
        more = more + (None,)
        if ctx.needs_input_grad[1]:
            return grads
        return more
""",
            why="the pieces of a tensor are a tuple, and a tuple may grow",
        ),
        Valid(
            """\
import torch
from torch.autograd import Function

class Two(Function):
    @staticmethod
    def forward(ctx, a, b):
        return a + b

    @staticmethod
    def backward(ctx, grad_output):
        grads = (grad_output, grad_output)
        if ctx.needs_input_grad[0]:
            return grads
        return (None,) * 2
""",
            why="a name or product may hold a tuple",
        ),
    )
