"""GCS505: a mask that looks differentiable."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import libcst as cst

from gradcheck_lint.model.function_class import (
    AutogradFunction,
    assignments,
    body_of,
    displayed,
    function_with,
    returns,
)
from gradcheck_lint.rules._rule import Invalid, Rule, Valid, Violation
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel


class OutputWronglyDifferentiable(Rule):
    """A Function returns a mask or index as a floating-point output that looks differentiable."""

    entry = catalogue.OUTPUT_WRONGLY_DIFFERENTIABLE

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield every returned mask whose gradient backward ignores."""
        known = function_with(function, "forward")
        if (
            known is None
            or known.backward is None
            or any(known.saving_calls("mark_non_differentiable"))
        ):
            return
        ends = returns(function.scope)
        outputs = displayed(ends[0].value, function.scope) if len(ends) == 1 else []
        if len(outputs) != len(known.cotangents):
            return
        bound = assignments(function.scope)
        used = _names_used(known)
        for output, cotangent in zip(outputs, known.cotangents, strict=True):
            sources = bound.get(output.value, []) if isinstance(output, cst.Name) else []
            if cotangent.name in used or len(sources) != 1 or not _is_step(sources[0]):
                continue
            yield Violation(
                output,
                "this output is a mask or index in floating point: it has no gradient, but looks "
                f"differentiable, and backward ignores `{cotangent.name}`",
                Severity.WARNING,
                f"call `ctx.mark_non_differentiable({function.module.code(output)})` in forward",
                ((sources[0], "made here"),),
            )

    invalid: ClassVar[tuple[Invalid, ...]] = (
        Invalid(
            """\
import torch
from torch.autograd import Function

class Threshold(Function):
    @staticmethod
    def forward(ctx, x, level):
        mask = (x > level).to(x.dtype)
        ctx.save_for_backward(mask)
        return x * mask, mask

    @staticmethod
    def backward(ctx, grad_output, grad_mask):
        (mask,) = ctx.saved_tensors
        return grad_output * mask, None
""",
            lines=(9,),
            severity=Severity.WARNING,
        ),
        Invalid(
            """\
import torch
from torch.autograd import Function

class Threshold(Function):
    @staticmethod
    def forward(x, level):
        mask = torch.gt(x, level).to(x.dtype)
        outputs = x * mask, mask
        return outputs

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, mask = output
        ctx.save_for_backward(mask)

    @staticmethod
    def backward(ctx, grad_output, grad_mask):
        (mask,) = ctx.saved_tensors
        return grad_output * mask, None
""",
            lines=(8,),
            severity=Severity.WARNING,
        ),
    )

    valid: ClassVar[tuple[Valid, ...]] = (
        Valid(
            """\
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
            why="marked",
        ),
        Valid(
            """\
import torch
from torch.autograd import Function

class Round(Function):
    @staticmethod
    def forward(ctx, x):
        rounded = torch.round(x)
        return rounded, x.clone()

    @staticmethod
    def backward(ctx, grad_rounded, grad_copy):
        return grad_rounded + grad_copy
""",
            why="a straight-through gradient",
        ),
    )


_STEPS = frozenset({"round", "sign", "floor", "ceil", "argmax", "argmin", "heaviside", "sgn"})
_CONVERSIONS = frozenset({"to", "float", "double", "half", "type_as", "type", "view", "reshape"})


def _is_step(node: cst.BaseExpression) -> bool:
    """Tell whether an expression is constant wherever it has a derivative, in floating point."""
    if not isinstance(node, cst.Call) or not isinstance(node.func, cst.Attribute):
        return False
    method, inner = node.func.attr.value, node.func.value
    if method in _STEPS:
        return method not in {"argmax", "argmin"}
    if method not in _CONVERSIONS:
        return False
    return (
        isinstance(inner, cst.Comparison)
        or _is_step(inner)
        or (
            isinstance(inner, cst.Call)
            and isinstance(inner.func, cst.Attribute)
            and inner.func.attr.value in _STEPS | {"ge", "gt", "le", "lt", "eq", "ne"}
        )
    )


def _names_used(function: AutogradFunction) -> frozenset[str]:
    assert function.backward is not None
    found: set[str] = set()
    for node in body_of(function.backward):
        if isinstance(node, cst.Name):
            found.add(node.value)
    return frozenset(found)
