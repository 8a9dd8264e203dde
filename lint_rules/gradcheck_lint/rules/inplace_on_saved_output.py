"""GCS108: an output that its own backward needs is overwritten."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, ClassVar

import libcst as cst

from gradcheck_lint.model.flow import Backward, GradMode, InPlace, Return
from gradcheck_lint.model.function_class import body_of
from gradcheck_lint.model.nearness import Sought
from gradcheck_lint.model.scopes import Part
from gradcheck_lint.model.syntax import boolean, dotted_name, keyword, positional, walk
from gradcheck_lint.model.values import Kind, carried_by_all, mentioned_by
from gradcheck_lint.rules._recording import exclude, is_for_evaluation, may_be_frozen
from gradcheck_lint.rules._rule import Invalid, Rule, Valid, Violation
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.flow import Event
    from gradcheck_lint.model.module import FunctionModel


class InplaceOnSavedOutput(Rule):
    """The output of an operation that needs it in backward is changed in place."""

    entry = catalogue.INPLACE_ON_SAVED_OUTPUT
    part = Part.WRITE

    def may_find(self, function: FunctionModel) -> bool:
        """Tell whether the output of such an operation can reach the function."""
        if not function.may_record or not function.module.near.has(function.scope, _OUTPUT_SAVER):
            return False
        near = function.module.near
        return near.has_itself(function.scope, _SEQUENTIAL) or function.may_write_to(_is_saver)

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield every write to such an output, by a method or by the next layer."""
        if function.module.near.has_itself(function.scope, _SEQUENTIAL):
            yield from _sequences(function)
        if not function.may_write_to(_is_saver):
            return
        events = list(function.events())
        for place, event in enumerate(events):
            if not isinstance(event, InPlace) or event.mode is GradMode.DISABLED:
                continue
            makers = [_maker(value.node, function) for value in event.values]
            if not makers or None in makers or event.expects_error:
                continue
            if not all(value.kind is Kind.HISTORY or value.through for value in event.values):
                continue
            severity = _severity(function, event, events[place + 1 :])
            if severity is None or may_be_frozen(function):
                continue
            yield Violation(
                event.node,
                f"the output of {makers[0]}() is needed by its own backward and is changed in "
                f"place by {event.operation}: torch raises in backward()",
                severity,
                "use the form that makes a new tensor",
            )

    invalid: ClassVar[tuple[Invalid, ...]] = (
        Invalid(
            """\
import torch
from torch import nn

model = nn.Sequential(
    nn.Linear(8, 8),
    nn.Tanh(),
    nn.Dropout(0.5, inplace=True),
    nn.Linear(8, 1),
)
""",
            lines=(7,),
        ),
        Invalid(
            """\
import torch

w = torch.randn(3, requires_grad=True)
y = torch.exp(w)
y.add_(1)
z = torch.sigmoid(w)
z *= 2
(y + z).sum().backward()
""",
            lines=(5, 7),
        ),
        Invalid(
            """\
import torch
import torch.nn.functional as F
from torch import nn

class Block(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.inner = nn.Linear(size, size)
        self.relu = nn.LeakyReLU()

    def forward(self, x):
        y = F.relu(self.inner(x))
        y += x
        z = self.inner(y).relu()
        z.mul_(2)
        w = self.relu(self.inner(z))
        w += 1
        return y + z + w
""",
            lines=(13, 15),
        ),
    )

    valid: ClassVar[tuple[Valid, ...]] = (
        Valid(
            """\
import torch
from torch import nn

model = nn.Sequential(nn.Conv2d(1, 1, 3), nn.ReLU(inplace=True), nn.Conv2d(1, 1, 3))
w = torch.randn(3, requires_grad=True)
y = w + 1
y.mul_(2)
with torch.no_grad():
    z = torch.exp(w)
    z.add_(1)
p = torch.sigmoid(w)
r = nn.functional.leaky_relu(w)
r += 1
(y + p + r).sum().backward()
p.zero_()
""",
            why="neither saves its output, nothing is recorded, or backward has been there",
        ),
    )


_SAVED = frozenset(
    {"sigmoid", "tanh", "exp", "softmax", "log_softmax", "sqrt", "rsqrt", "reciprocal", "expm1"}
)
_SAVED_BY_TORCH = frozenset({"relu", "exp2", "tan", "logsumexp", "cumprod"})
"""Modules go by these names too, which may be of any kind: ``self.relu = nn.LeakyReLU()``."""
_SAVED_LAYERS = frozenset({"Sigmoid", "Tanh", "Softmax", "LogSoftmax"})


def _is_saver(word: str) -> bool:
    return word in _SAVED or word in _SAVED_BY_TORCH


def _is_sequential(word: str) -> bool:
    return word == "Sequential"


def _is_either(word: str) -> bool:
    return _is_saver(word) or _is_sequential(word)


_OUTPUT_SAVER = Sought(_is_either)
_SEQUENTIAL = Sought(_is_sequential)


def _maker(node: cst.CSTNode | None, function: FunctionModel) -> str | None:
    """Return the operation that made a value and needs it again."""
    if not isinstance(node, cst.Call):
        return None
    name = dotted_name(node.func) or ""
    last = name.rpartition(".")[2]
    if isinstance(node.func, cst.Attribute):
        last = node.func.attr.value
    if last in _SAVED_BY_TORCH:
        is_method = isinstance(node.func, cst.Attribute) and not node.args
        whole = function.module.scopes.resolve_import(name) or ""
        return last if is_method or whole.startswith("torch.") else None
    return last if last in _SAVED else None


def _severity(function: FunctionModel, write: InPlace, later: list[Event]) -> Severity | None:
    """Return how certain it is that a backward goes through what is overwritten; None if not."""
    made = {id(value.node) for value in write.values}
    backwards = [event for event in later if isinstance(event, Backward)]
    if backwards:
        for event in backwards:
            if event.expects_error or exclude(write, event):
                continue
            reached = carried_by_all(event.values) | mentioned_by(event.values)
            if made <= reached:
                is_certain = event.arms == write.arms and made <= carried_by_all(event.values)
                return Severity.ERROR if is_certain else Severity.WARNING
        return None
    if not function.scope.name.endswith(".forward") or is_for_evaluation(function, write):
        return None
    for returned in later:
        if isinstance(returned, Return) and made <= (
            carried_by_all(returned.values) | mentioned_by(returned.values)
        ):
            return Severity.WARNING if write.arms else Severity.ERROR
    return None


def _sequences(function: FunctionModel) -> Iterator[Violation]:
    """Yield layers of an ``nn.Sequential`` that overwrite what the layer before has saved."""
    scopes = function.module.scopes
    nodes = (
        body_of(function.scope)
        if not isinstance(function.scope.node, cst.Module)
        else _top_level(function.scope.node)
    )
    for node in nodes:
        if type(node) is not cst.Call:
            continue
        if scopes.resolve_import(dotted_name(node.func) or "") != "torch.nn.Sequential":
            continue
        layers = positional(node)
        for before, layer in itertools.pairwise(layers):
            if not isinstance(before, cst.Call) or not isinstance(layer, cst.Call):
                continue
            first = scopes.resolve_import(dotted_name(before.func) or "") or ""
            if first.removeprefix("torch.nn.") not in _SAVED_LAYERS:
                continue
            if boolean(keyword(layer, "inplace")) is True:
                yield Violation(
                    layer,
                    f"this layer overwrites the output of {first.rpartition('.')[2]}, which its "
                    "backward needs: torch raises in backward()",
                    Severity.ERROR,
                    "drop inplace=True here",
                    ((before, "saves its output"),),
                )


def _top_level(module: cst.Module) -> Iterator[cst.CSTNode]:
    for statement in module.body:
        if not isinstance(statement, (cst.FunctionDef, cst.ClassDef)):
            yield from walk(statement)
