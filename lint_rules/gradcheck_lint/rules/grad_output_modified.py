"""GCS506: backward writes into the gradient it was given."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import libcst as cst

from gradcheck_lint.model.flow import InPlace
from gradcheck_lint.model.function_class import function_with
from gradcheck_lint.model.syntax import dotted_name
from gradcheck_lint.model.values import Kind, Origin
from gradcheck_lint.rules._aliases import name_written
from gradcheck_lint.rules._rule import Invalid, Rule, Valid, Violation
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel
    from gradcheck_lint.model.values import Value, Values

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
        star = known.starred_cotangents
        seen: set[str] = set()
        for event in function.events():
            if not isinstance(event, InPlace):
                continue
            name, certain = name_written(event.values, sites)
            if name is None and _is_one_of(star, event.values):
                name, certain = function.module.text(_written(event)), True
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
                f"work on a copy: `{name if name.isidentifier() else 'copy'} = {name}.clone()`",
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
        Invalid(
            """\
import torch

class Pair(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b):
        return a.clone(), b.clone()

    @staticmethod
    def backward(ctx, *grads):
        first = grads[0]
        first[first != first] = 0
        one, other = grads
        other *= 2
        for grad in grads:
            grad.clamp_(-1, 1)
        return grads
""",
            lines=(11, 13, 15),
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
        Valid(
            """\
import torch

class Pair(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b):
        return a.clone(), b.clone()

    @staticmethod
    def backward(ctx, *grads):
        total = sum(grads)
        total *= 2
        grads = list(grads)
        grads[0] = grads[0] * 2
        doubled = [grad * 2 for grad in grads]
        for grad in doubled:
            grad.clamp_(-1, 1)
        for grad in map(torch.clone, grads):
            grad.zero_()
        return tuple(doubled)
""",
            why="a list of them is changed, and what is made of them",
        ),
    )


def _is_one_of(star: cst.Param | None, values: Values) -> bool:
    """Tell whether these are elements of ``*grads``, taken out of it and nothing else."""
    return star is not None and bool(values) and all(_is_element(star, value) for value in values)


def _is_element(star: cst.Param, value: Value) -> bool:
    if value.kind is not Kind.UNKNOWN or value.mentions != {id(star)}:
        return False
    if isinstance(value.node, cst.Call):
        # `for i, grad in enumerate(grads)`: of another call, who knows what it makes.
        return value.origin is Origin.ELEMENT and dotted_name(value.node.func) == "enumerate"
    return value.origin is Origin.ELEMENT or isinstance(value.node, cst.Element)


def _written(event: InPlace) -> cst.CSTNode:
    return event.node if event.target is None else event.target
