"""GCS501: backward returns too few gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import libcst as cst

from gradcheck_lint.model.function_class import (
    AutogradFunction,
    function_with,
    has_other_decorator,
    returns,
)
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
        for node in returns(function.scope):
            given = _count(node.value, known)
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


_TENSOR_OPERATORS = (cst.Divide, cst.Subtract, cst.MatrixMultiply, cst.Power)


def _count(  # noqa: PLR0911 - one answer for each form
    node: cst.BaseExpression | None, function: AutogradFunction
) -> int | None:
    """Return how many values are returned, or None if that can't be told."""
    if isinstance(node, cst.Tuple):
        if any(isinstance(element, cst.StarredElement) for element in node.elements):
            return None
        return len(node.elements)
    if isinstance(node, cst.BinaryOperation):
        if isinstance(node.operator, _TENSOR_OPERATORS):
            return 1
        if isinstance(node.operator, cst.Multiply):
            sides = (node.left, node.right)
            names = {item.name for item in function.cotangents}
            return 1 if any(_is_cotangent(side, names) for side in sides) else None
        return None
    if isinstance(node, cst.UnaryOperation):
        return 1
    names = {item.name for item in function.cotangents}
    return 1 if node is not None and _is_cotangent(node, names) else None


def _is_cotangent(node: cst.BaseExpression, names: set[str]) -> bool:
    """Tell whether this is the gradient that backward was given, perhaps through its methods."""
    while isinstance(node, (cst.Call, cst.Attribute)):
        node = node.func if isinstance(node, cst.Call) else node.value
    return isinstance(node, cst.Name) and node.value in names
