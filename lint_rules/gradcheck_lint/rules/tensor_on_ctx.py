"""GCS205: a tensor as an attribute of ctx."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import libcst as cst

from gradcheck_lint.model.function_class import (
    AutogradFunction,
    assignments,
    body_of,
    elements_of,
    function_with,
)
from gradcheck_lint.model.syntax import dotted_name, is_none, positional, walk
from gradcheck_lint.rules._rule import Invalid, Rule, Valid, Violation
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel


class TensorOnCtx(Rule):
    """A Function keeps a tensor as an attribute of ctx in place of ``save_for_backward``."""

    entry = catalogue.TENSOR_ON_CTX

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield every tensor that is put on ctx."""
        known = function_with(function, "forward", "setup_context")
        if known is None:
            return
        context = function.scope.first_parameter
        inputs = {item.name for item in known.inputs or []}
        for node in body_of(function.scope):
            for attribute, name in _bound_names(node):
                what = _what(name, known, inputs, function)
                if (
                    what is not None
                    and isinstance(attribute.value, cst.Name)
                    and attribute.value.value == context
                    and not _is_other_there(function, node, name)
                ):
                    yield Violation(
                        node,
                        f"`{context}.{attribute.attr.value}` keeps {what} `{name}` outside of "
                        "save_for_backward: torch can't see whether it was overwritten before "
                        "backward, and an input or output kept so leaks its graph",
                        Severity.WARNING,
                        f"`{context}.save_for_backward({name})`, then `{context}.saved_tensors`",
                    )

    invalid: ClassVar[tuple[Invalid, ...]] = (
        Invalid(
            """\
import torch
from torch.autograd import Function

class Square(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.x = x
        return x.pow(2)

    @staticmethod
    def backward(ctx, grad_output):
        return 2 * ctx.x * grad_output
""",
            lines=(7,),
            severity=Severity.WARNING,
        ),
        Invalid(
            """\
import torch
from torch.autograd import Function

class Exp(Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.exp(x)
        ctx.y = y
        return y

    @staticmethod
    def backward(ctx, grad_output):
        return ctx.y * grad_output
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

class Scale(Function):
    @staticmethod
    def forward(ctx, x, factor, stride):
        ctx.factor = factor
        ctx.stride = stride
        shape = x.shape
        ctx.shape = shape
        return x * factor

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * ctx.factor, None, None
""",
            why="numbers and shapes belong on ctx",
        ),
    )


def _bound_names(node: cst.CSTNode) -> Iterator[tuple[cst.Attribute, str]]:
    """Yield each attribute that a statement binds to a name, also several at once."""
    if not isinstance(node, cst.Assign):
        return
    for known in node.targets:
        pairs: list[tuple[cst.BaseExpression, cst.BaseExpression]] = [(known.target, node.value)]
        if isinstance(known.target, cst.Tuple) and isinstance(node.value, cst.Tuple):
            left, right = known.target.elements, node.value.elements
            pairs = [(one.value, other.value) for one, other in zip(left, right, strict=False)]
        for target, value in pairs:
            if isinstance(target, cst.Attribute) and isinstance(value, cst.Name):
                yield target, value.value


def _what(
    name: str, function: AutogradFunction, inputs: set[str], model: FunctionModel
) -> str | None:
    """Say which tensor a name holds; None if it is not shown to be one."""
    if name in inputs:
        bound = assignments(model.scope).get(name, [])
        return "the input" if name in function.tensors and not bound else None
    sources = assignments(model.scope).get(name, [])
    if len(sources) != 1 or not _makes_tensor(sources[0], function):
        return None
    return "the output" if name in function.returned else "the tensor"


def _is_other_there(function: FunctionModel, place: cst.CSTNode, name: str) -> bool:
    """Tell whether only a branch leads to a statement in which a name holds no tensor.

    ``if isinstance(offset, int): ctx.offset = offset``, or in the ``else`` of ``Tensor``.
    """
    for node in body_of(function.scope):
        if not isinstance(node, cst.If):
            continue
        is_tensor = _asks_for_tensor(node.test, name)
        if is_tensor is None:
            continue
        arm = node.orelse if is_tensor else node.body
        if arm is not None and any(found is place for found in walk(arm)):
            return True
    return False


def _asks_for_tensor(test: cst.BaseExpression, name: str) -> bool | None:
    """Tell whether a test is of a name, and true for a tensor; None for any other test."""
    if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
        inner = _asks_for_tensor(test.expression, name)
        return None if inner is None else not inner
    if isinstance(test, cst.Comparison) and dotted_name(test.left) == name:
        return _is_not_none(test)
    if not isinstance(test, cst.Call) or dotted_name(test.func) not in {
        "isinstance",
        "torch.is_tensor",
    }:
        return None
    given = positional(test)
    if not given or dotted_name(given[0]) != name:
        return None
    if len(given) == 1:
        return True
    kinds = given[1:] if not isinstance(given[1], cst.Tuple) else elements_of(given[1])
    return any((dotted_name(kind) or "Tensor").endswith("Tensor") for kind in kinds)


_ASKS = frozenset({"isinstance", "torch.is_tensor"})


def _is_not_none(test: cst.Comparison) -> bool | None:
    """Tell whether a comparison is ``is not None`` (True) or ``is None`` (False)."""
    only = test.comparisons[0]
    if len(test.comparisons) != 1 or not is_none(only.comparator):
        return None
    return {cst.Is: False, cst.IsNot: True}.get(type(only.operator))


def _makes_tensor(node: cst.BaseExpression, function: AutogradFunction) -> bool:
    if not isinstance(node, cst.Call) or not isinstance(node.func, cst.Attribute):
        return False
    method, owner = node.func.attr.value, node.func.value
    if not isinstance(owner, cst.Name) or method not in _MAKERS:
        return False
    imported = function.module.scopes.resolve_import(owner.value)
    return imported == "torch" or owner.value in function.tensors


_MAKERS = frozenset(
    {
        "exp",
        "log",
        "sqrt",
        "rsqrt",
        "sin",
        "cos",
        "sigmoid",
        "tanh",
        "softmax",
        "log_softmax",
        "pow",
        "square",
        "clone",
        "matmul",
        "mm",
        "bmm",
        "mul",
        "div",
        "add",
        "sub",
        "new",
        "new_empty",
        "new_full",
        "new_ones",
        "new_zeros",
        "zeros_like",
        "ones_like",
        "empty_like",
        "clamp",
        "relu",
        "sum",
        "mean",
        "contiguous",
    }
)
