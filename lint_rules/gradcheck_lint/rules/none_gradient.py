"""GCS508: the needs_input_grad indices of a backward are mixed up."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import libcst as cst

from gradcheck_lint.model.function_class import (
    AutogradFunction,
    body_of,
    elements_of,
    function_with,
    names_in,
    returns,
)
from gradcheck_lint.model.syntax import dotted_name, integer, is_none, positional, walk
from gradcheck_lint.model.values import Kind, all_are
from gradcheck_lint.rules._rule import Invalid, Rule, Valid, Violation
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel
    from gradcheck_lint.model.scopes import FunctionScope


class NoneGradient(Rule):
    """A parameter gets None, or a ``needs_input_grad`` index guards another gradient."""

    entry = catalogue.NONE_GRADIENT

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield every guard whose index is not that of the gradient it guards."""
        known = function_with(function, "backward", "vjp")
        if known is None or known.inputs is None:
            return
        places = _places(function)
        for node in body_of(function.scope):
            index = _guarded_index(node)
            if index is None or not isinstance(node, cst.If) or index >= len(known.inputs):
                continue
            guarded = {places[name] for name in _assigned(node) if name in places}
            if not guarded or index in guarded or len(guarded) > 1:
                continue
            (place,) = guarded
            yield Violation(
                node.test,
                f"needs_input_grad[{index}] asks about input {index} of forward, but guards the "
                f"gradient that is returned for input {place}",
                Severity.ERROR,
                f"ask `ctx.needs_input_grad[{place}]`",
            )
        yield from _lost(function, places)
        yield from _refused(function, known)

    invalid: ClassVar[tuple[Invalid, ...]] = (
        Invalid(
            """\
import torch
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
            grad_weight = grad_output.t() @ x
        if ctx.needs_input_grad[1]:
            grad_x = grad_output @ weight
        return grad_x, grad_weight
""",
            lines=(14, 16),
        ),
        Invalid(
            """\
import torch
from torch import nn
from torch.autograd import Function

class Project(Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight.t()

    @staticmethod
    def backward(ctx, grad_output):
        x, weight = ctx.saved_tensors
        return grad_output @ weight, None

class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width, width))

    def forward(self, x):
        return Project.apply(x, self.weight)
""",
            lines=(14,),
            severity=Severity.WARNING,
        ),
    )

    valid: ClassVar[tuple[Valid, ...]] = (
        Valid(
            """\
import torch
from torch import nn
from torch.autograd import Function

class Scale(Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(scale)
        return x * scale

    @staticmethod
    def backward(ctx, grad_output):
        (scale,) = ctx.saved_tensors
        return grad_output * scale, None

class Fixed(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.register_buffer("scale", torch.ones(width))
        self.gain = nn.Parameter(torch.ones(width), requires_grad=False)
        self.shift = nn.Parameter(torch.ones(width))

    def forward(self, x):
        out = Scale.apply(Scale.apply(x, self.scale), self.gain)
        return Scale.apply(out, self.shift) + self.shift
""",
            why="a buffer, a frozen parameter, or one that is trained elsewhere",
        ),
        Valid(
            """\
import torch
from torch.autograd import Function

class Linear(Function):
    @staticmethod
    def forward(ctx, x, weight, bias=None):
        ctx.save_for_backward(x, weight)
        return x @ weight.t() + bias

    @staticmethod
    def backward(ctx, grad_output):
        x, weight = ctx.saved_tensors
        grad_x = grad_weight = grad_bias = None
        if ctx.needs_input_grad[0]:
            grad_x = grad_output @ weight
        if ctx.needs_input_grad[1]:
            grad_weight = grad_output.t() @ x
        if ctx.needs_input_grad[2]:
            grad_bias = grad_output.sum(0)
        return grad_x, grad_weight, grad_bias
""",
            why="each index guards its own gradient",
        ),
    )


def _places(function: FunctionModel) -> dict[str, int]:
    """Return at which place each name is returned, where all returns agree."""
    places: dict[str, int] = {}
    clashes: set[str] = set()
    for node in returns(function.scope):
        for place, element in enumerate(elements_of(node.value)):
            if not isinstance(element, cst.Name):
                continue
            if places.setdefault(element.value, place) != place:
                clashes.add(element.value)
    return {name: place for name, place in places.items() if name not in clashes}


def _lost(function: FunctionModel, places: dict[str, int]) -> Iterator[Violation]:
    """Yield gradients that are computed where they are asked for, and then not returned."""
    ways = [elements_of(node.value) for node in returns(function.scope)]
    used = {name for node in returns(function.scope) for name in names_in(node)}
    for node in body_of(function.scope):
        index = _guarded_index(node)
        if index is None or not isinstance(node, cst.If) or not ways:
            continue
        computed = _assigned(node)
        if len(computed) != 1 or computed & (used | places.keys()):
            continue
        if all(index < len(way) and is_none(way[index]) for way in ways):
            (name,) = computed
            yield Violation(
                node.test,
                f"`{name}` is computed because input {index} needs a gradient, but backward "
                f"returns None for it",
                Severity.ERROR,
                f"return `{name}` at place {index}",
            )


def _refused(function: FunctionModel, known: AutogradFunction) -> Iterator[Violation]:
    """Yield inputs that always get None although the file hands a parameter to them alone."""
    ways = [elements_of(node.value) for node in returns(function.scope)]
    assert known.inputs is not None
    if not ways or any(len(way) != len(known.inputs) for way in ways):
        return
    refused = [
        place for place in range(len(known.inputs)) if all(is_none(way[place]) for way in ways)
    ]
    for scope in function.module.scopes.functions if refused else ():
        if scope.owner is None:
            continue
        for node in body_of(scope):
            if not isinstance(node, cst.Call) or dotted_name(node.func) != f"{known.name}.apply":
                continue
            handed = positional(node)
            for place in refused:
                if len(handed) != len(node.args) or len(handed) <= place:
                    continue
                attribute = handed[place]
                if _is_parameter_used_once(attribute, scope, function):
                    yield Violation(
                        ways[0][place],
                        f"backward returns None for input {place} of forward, and "
                        f"`{dotted_name(attribute)}` is a parameter that goes nowhere else: it is "
                        "never trained",
                        Severity.WARNING,
                        f"return the gradient of `{known.inputs[place].name}` at place {place}",
                        ((node, "the parameter is handed to it here"),),
                    )
                    return


def _is_parameter_used_once(
    node: cst.BaseExpression, scope: FunctionScope, function: FunctionModel
) -> bool:
    """Tell whether this is a parameter on ``self`` that no other line of the class reads."""
    path, owner = dotted_name(node) or "", scope.owner
    first, dot, attribute = path.partition(".")
    if owner is None or not dot or "." in attribute or first != scope.first_parameter:
        return False
    module = function.module
    if not module.scopes.derives_from(owner, "torch.nn."):
        return False
    if not all_are(module.class_attribute(owner.name, attribute), Kind.LEAF):
        return False
    named = [
        other
        for other in walk(module.tree)
        if isinstance(other, cst.Attribute) and other.attr.value == attribute
    ]
    made = [
        other.target
        for other in walk(module.tree)
        if isinstance(other, (cst.AssignTarget, cst.AnnAssign))
    ]
    return all(other is node or any(other is target for target in made) for other in named)


def _guarded_index(node: cst.CSTNode) -> int | None:
    """Return n of ``if ctx.needs_input_grad[n]:``."""
    if not isinstance(node, cst.If) or node.orelse is not None:
        return None
    test = node.test
    if not isinstance(test, cst.Subscript) or not isinstance(test.value, cst.Attribute):
        return None
    if test.value.attr.value != "needs_input_grad" or len(test.slice) != 1:
        return None
    index = test.slice[0].slice
    return integer(index.value) if isinstance(index, cst.Index) else None


def _assigned(node: cst.If) -> set[str]:
    found: set[str] = set()
    for statement in node.body.body:
        if isinstance(statement, cst.SimpleStatementLine):
            for small in statement.body:
                if isinstance(small, cst.Assign):
                    for target in small.targets:
                        if isinstance(target.target, cst.Name):
                            found.add(target.target.value)
    return found
