"""GCS407: .grad of an intermediate."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, ClassVar, Final

import libcst as cst

from gradcheck_lint.model.flow import Backward
from gradcheck_lint.model.forward import is_named_as_model
from gradcheck_lint.model.function_class import body_of
from gradcheck_lint.model.scopes import Part
from gradcheck_lint.model.syntax import (
    boolean,
    child_list,
    dotted_name,
    is_none,
    keyword,
    positional,
    walk,
)
from gradcheck_lint.model.values import NOTHING, Kind, Value, Values, all_are
from gradcheck_lint.rules._rule import Invalid, Rule, Valid, Violation
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel


class GradReadOnNonLeaf(Rule):
    """``.grad`` is read from an intermediate, which does not keep its gradient."""

    entry = catalogue.GRAD_READ_ON_NON_LEAF

    def may_find(self, function: FunctionModel) -> bool:
        """Tell whether the function reads a gradient, or may make a leaf and an optimizer."""
        words = function.scope.words
        if Part.BACKWARD in function.scope.parts and "grad" in words:
            return True
        return not words.isdisjoint(_LEAF_WORDS) and "optim" in " ".join(words).lower()

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield every read of the gradient of a model's output, or of what is made of a leaf."""
        yield from _optimized(function)
        if b"retain_grad" in function.module.source:
            return
        if not any(isinstance(event, Backward) for event in function.events()):
            return
        is_top = isinstance(function.scope.node, cst.Module)
        seen: set[str] = set()
        nodes = list(_nodes(function))
        reads = [
            node for node in nodes if type(node) is cst.Attribute and node.attr.value == "grad"
        ]
        if not reads:
            return
        known = {dotted_name(node) for node in _seen_to(nodes)}
        cleared = {id(node.target) for node in nodes if type(node) is cst.AssignTarget}
        for node in reads:
            name = node.value.value if type(node.value) is cst.Name else None
            values = function.bindings.get(name or "", frozenset())
            if name is None or name in seen or not values or id(node) in cleared:
                continue
            if f"{name}.grad" in known:
                continue
            if not is_top and _is_output(values):
                what = f"`{name}` is the output of a model"
            elif _are_of_leaf(values, function):
                what = f"`{name}` is computed from a leaf and none itself"
            else:
                continue
            seen.add(name)
            yield Violation(
                node,
                f"{what}, whose gradient is not kept: it is None",
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
        Invalid(
            """\
import torch

w = torch.randn(3, requires_grad=True) * 0.1
loss = (w ** 2).sum()
loss.backward()
print(w.grad)

def fit(x, y):
    w = torch.zeros(3, requires_grad=True) + 0.5
    optimizer = torch.optim.SGD([w], lr=0.1)
    for _ in range(10):
        optimizer.zero_grad()
        ((x @ w - y) ** 2).sum().backward()
        optimizer.step()
""",
            lines=(6, 10),
            severity=Severity.WARNING,
        ),
    )

    valid: ClassVar[tuple[Valid, ...]] = (
        Valid(
            """\
import torch

w = (torch.randn(3) * 0.1).requires_grad_()
optimizer = torch.optim.SGD([w], lr=0.1)
v = w * 2
(v ** 2).sum().backward()
print(w.grad, v.grad is None)

def fit(scale):
    w = torch.ones(3, requires_grad=True) * scale
    w = w.detach().requires_grad_()
    w.sum().backward()
    return w.grad
""",
            why="made a leaf afterwards",
        ),
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


_LEAF_WORDS: Final = frozenset({"requires_grad", "requires_grad_", "Parameter"})


_DEFINITIONS: Final = frozenset({cst.FunctionDef, cst.ClassDef, cst.Lambda})


def _nodes(function: FunctionModel) -> Iterator[cst.CSTNode]:
    """Yield the nodes of a body, at the top level those of no function or class."""
    scope = function.scope
    if not isinstance(scope.node, cst.Module):
        yield from body_of(scope)
        return
    waiting: list[cst.CSTNode] = [scope.node]
    while waiting:
        node = waiting.pop()
        if type(node) not in _DEFINITIONS:
            yield node
            waiting.extend(reversed(child_list(node)))


def _seen_to(nodes: list[cst.CSTNode]) -> Iterator[cst.CSTNode]:
    """Yield what is compared, as in ``if x.grad is not None``, and what is given a value."""
    for node in nodes:
        if type(node) is cst.Comparison:
            yield node.left
        elif type(node) is cst.Assign and not is_none(node.value):
            yield from (each.target for each in node.targets)


_PART = re.compile(
    r"forward\w*|(?:\w+_)?features?|encode\w*|embed\w*|layer\d+|conv\d*|fc\d*|stem|trunk|blocks?"
)
"""What the parts of a model are called whose output depends on its parameters."""


def _is_output(values: Values) -> bool:
    """Tell whether a model, or a part of one that is called by its name, made each of these."""
    return all(
        value.kind is Kind.UNKNOWN
        and value.cut is None
        and (value.result_of != 0 or _is_of_part(value.node))
        for value in values
    )


def _is_of_part(node: cst.CSTNode | None) -> bool:
    if type(node) is not cst.Call or type(node.func) is not cst.Attribute or not node.args:
        return False
    owner, part = dotted_name(node.func.value), node.func.attr.value
    return owner is not None and is_named_as_model(owner) and _PART.fullmatch(part) is not None


def _are_of_leaf(values: Values, function: FunctionModel) -> bool:
    """Tell whether one operation made each of these of a leaf."""
    return all_are(values, Kind.HISTORY) and all(_is_of_leaf(value, function) for value in values)


def _is_of_leaf(value: Value, function: FunctionModel) -> bool:
    node = value.node
    if isinstance(node, cst.BinaryOperation):
        operands = [node.left, node.right]
        if any(isinstance(inner, cst.Call) and _asks_for_gradient(inner) for inner in walk(node)):
            return True
    elif isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
        operands = [node.func.value, *positional(node)]
    else:
        return False
    names = (dotted_name(operand) for operand in operands)
    return any(
        name is not None and all_are(function.bindings.get(name, NOTHING), Kind.LEAF)
        for name in names
    )


def _asks_for_gradient(node: cst.Call) -> bool:
    last = (dotted_name(node.func) or "").rpartition(".")[2]
    return last == "Parameter" or boolean(keyword(node, "requires_grad")) is True


def _optimized(function: FunctionModel) -> Iterator[Violation]:
    """Yield every computed tensor that an optimizer is given in a list."""
    bindings = function.bindings
    computed = {name for name, values in bindings.items() if _are_of_leaf(values, function)}
    for node in _nodes(function) if computed else ():
        if not isinstance(node, cst.Call) or not node.args:
            continue
        handed = node.args[0].value
        if not isinstance(handed, (cst.List, cst.Tuple)):
            continue
        if not function.module.makes_optimizer(node):
            continue
        for element in handed.elements:
            name = dotted_name(element.value)
            if name in computed:
                (made, *_) = bindings[name]
                yield Violation(
                    node,
                    f"`{name}` is computed from a leaf and none itself: an optimizer takes leaves "
                    "alone, and torch raises here",
                    Severity.WARNING,
                    f"compute first, then ask for the gradient: `{name}.requires_grad_()`",
                    ((made.node, "computed here"),) if made.node is not None else (),
                )
                break
