"""GCS108: an output that its own backward needs is overwritten."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from gradcheck_lint.model.flow import Backward, GradMode, InPlace, Return
from gradcheck_lint.model.reading import may_write
from gradcheck_lint.model.syntax import dotted_name
from gradcheck_lint.model.values import Kind, carried_by_all, mentioned_by
from gradcheck_lint.rules._rule import Rule, Violation
from gradcheck_lint.rules.in_place.layer_sequences import is_inplace, pairs_of_layers
from gradcheck_lint.rules.in_place.overwriting_layers import (
    drops_nothing,
    drops_surely,
    saves_output,
    saving_layer,
    written_by_layer,
)
from gradcheck_lint.rules.in_place.recording import exclude, is_for_evaluation, may_be_frozen
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.flow import Event
    from gradcheck_lint.model.module import FunctionModel


class InplaceOnSavedOutput(Rule):
    """The output of an operation that needs it in backward is changed in place."""

    entry = catalogue.INPLACE_ON_SAVED_OUTPUT

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield every write to such an output, by a method or by the next layer."""
        if function.module.near.has_itself(function.scope, _is_sequential):
            yield from _sequences(function)
        if not may_write(function.scope, function.module.scopes):
            return
        events = list(function.events())
        for place, happening in enumerate(events):
            event = written_by_layer(happening)
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


_SAVED = frozenset(
    {"sigmoid", "tanh", "exp", "softmax", "log_softmax", "sqrt", "rsqrt", "reciprocal", "expm1"}
)
_SAVED_BY_TORCH = frozenset({"relu", "exp2", "tan", "logsumexp", "cumprod"})
"""Modules go by these names too, which may be of any kind: ``self.relu = nn.LeakyReLU()``."""


def _is_sequential(word: str) -> bool:
    return word == "Sequential"


def _maker(node: cst.CSTNode | None, function: FunctionModel) -> str | None:
    """Return the operation that made a value and needs it again."""
    if type(node) is not cst.Call:
        return None
    name = dotted_name(node.func) or ""
    last = name.rpartition(".")[2]
    if type(node.func) is cst.Attribute:
        last = node.func.attr.value
    if last in _SAVED_BY_TORCH:
        is_method = type(node.func) is cst.Attribute and not node.args
        whole = function.module.scopes.resolve_import(name) or ""
        return last if is_method or whole.startswith("torch.") else None
    return last if last in _SAVED else saving_layer(node, function)


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
    for before, layer in pairs_of_layers(function):
        first = scopes.resolve_import(dotted_name(before.func) or "") or ""
        second = scopes.resolve_import(dotted_name(layer.func) or "") or ""
        package, _, saver = first.rpartition(".")
        if package != "torch.nn" or not saves_output(saver, before):
            continue
        name = second.removeprefix("torch.nn.")
        if not is_inplace(layer, name) or drops_nothing(layer, name):
            continue
        is_known = second.startswith("torch.nn.") and drops_surely(layer, name)
        yield Violation(
            layer,
            f"this layer overwrites the output of {saver}, which its backward needs: torch raises "
            "in backward()",
            Severity.ERROR if is_known else Severity.WARNING,
            "drop inplace=True here",
            ((before, "saves its output"),),
        )
