"""GCS506: backward writes into the gradient it was given."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from gradcheck_lint.model.flow import InPlace
from gradcheck_lint.model.function_class import function_with
from gradcheck_lint.rules._aliases import name_written
from gradcheck_lint.rules._rule import Invalid, Rule, Valid, Violation
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel

_RESHAPES = frozenset(
    {
        *("as_strided_()", "squeeze_()", "swapaxes_()", "swapdims_()", "t_()", "transpose_()"),
        "unsqueeze_()",
    }
)


class GradOutputModified(Rule):
    """A backward writes into the gradient that it was given, which others may use too."""

    entry = catalogue.GRAD_OUTPUT_MODIFIED

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield the first write to each gradient that a backward is given."""
        known = function_with(function, "backward", "vjp")
        if known is None:
            return
        sites = {id(item.node): item.name for item in known.cotangents}
        seen: set[str] = set()
        for event in function.events():
            if not isinstance(event, InPlace):
                continue
            name, certain = name_written(event.values, sites)
            if name is None or name in seen:
                continue
            is_itself = any(value.site in sites for value in event.values)
            if event.operation in _RESHAPES and not is_itself:
                continue  # a view of it gets another shape, and no number changes
            seen.add(name)
            yield Violation(
                event.node,
                f"backward modifies `{name}` in place by {event.operation}: the same tensor may be "
                "on its way to other operations, which then get wrong gradients",
                Severity.ERROR if certain and not event.arms else Severity.WARNING,
                f"work on a copy: `{name} = {name}.clone()`",
            )

    invalid: ClassVar[tuple[Invalid, ...]] = (
        Invalid(
            """\
import torch
from torch.autograd import Function

class Relu(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        grad_input = grad_output
        grad_input[x < 0] = 0
        return grad_input
""",
            lines=(14,),
        ),
        Invalid(
            """\
import torch

class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return grad.neg_()
""",
            lines=(10,),
        ),
        Invalid(
            """\
import torch

class Total(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sum(-1)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad.unsqueeze_(-1).expand_as(x)
""",
            lines=(12,),
        ),
    )

    valid: ClassVar[tuple[Valid, ...]] = (
        Valid(
            """\
import torch
from torch.autograd import Function

class Relu(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        grad_input = grad_output.clone()
        grad_input[x < 0] = 0
        grad_output = grad_output * 2
        grad_output *= 3
        return grad_input
""",
            why="copies are written",
        ),
        Valid(
            """\
import torch

class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return (x * weight).sum(-1)

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        rows = grad.unsqueeze(-1)
        column = grad.view(-1)
        column.unsqueeze_(-1)
        return rows * weight, column.mul(x).sum(0)
""",
            why="a view gets another shape: neither the numbers nor the shape of `grad` change",
        ),
    )
