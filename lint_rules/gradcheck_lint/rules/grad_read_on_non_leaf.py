"""GCS407: .grad of an intermediate."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import libcst as cst

from gradcheck_lint.model.flow import Backward
from gradcheck_lint.model.function_class import body_of
from gradcheck_lint.model.scopes import Part
from gradcheck_lint.model.values import Kind
from gradcheck_lint.rules._rule import Invalid, Rule, Valid, Violation
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel


class GradReadOnNonLeaf(Rule):
    """``.grad`` is read from an intermediate, which does not keep its gradient."""

    entry = catalogue.GRAD_READ_ON_NON_LEAF
    part = Part.BACKWARD

    def may_find(self, function: FunctionModel) -> bool:
        """Tell whether the function reads a gradient as well."""
        return "grad" in function.scope.words

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield every read of the gradient of a model's output."""
        if isinstance(function.scope.node, cst.Module) or b"retain_grad" in function.module.source:
            return
        if not any(isinstance(event, Backward) for event in function.events()):
            return
        seen: set[str] = set()
        for node in body_of(function.scope):
            if not isinstance(node, cst.Attribute) or node.attr.value != "grad":
                continue
            name = node.value.value if isinstance(node.value, cst.Name) else None
            values = function.bindings.get(name or "", frozenset())
            if name is None or name in seen or not values:
                continue
            if all(value.kind is Kind.UNKNOWN and value.result_of for value in values) and all(
                value.cut is None for value in values
            ):
                seen.add(name)
                yield Violation(
                    node,
                    f"`{name}` is the output of a model, whose gradient is not kept: it is None",
                    Severity.WARNING,
                    f"call `{name}.retain_grad()` before backward()",
                )

    invalid: ClassVar[tuple[Invalid, ...]] = (
        Invalid(
            """\
import torch
from torch import nn

def activation_gradient(encoder: nn.Module, head: nn.Module, x):
    hidden = encoder(x)
    head(hidden).sum().backward()
    return hidden.grad.norm()
""",
            lines=(7,),
            severity=Severity.WARNING,
        ),
    )

    valid: ClassVar[tuple[Valid, ...]] = (
        Valid(
            """\
import torch
from torch import nn

def input_gradient(encoder: nn.Module, x):
    x = x.detach().requires_grad_()
    encoder(x).sum().backward()
    for p in encoder.parameters():
        print(p.grad)
    return x.grad.norm()
""",
            why="leaves keep their gradient",
        ),
    )
