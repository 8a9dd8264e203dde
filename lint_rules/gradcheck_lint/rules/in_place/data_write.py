"""GCS105: a write that autograd does not see."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from gradcheck_lint.analyses.source_text import source_of
from gradcheck_lint.model.flow import Backward, Forward, GradMode, InPlace
from gradcheck_lint.model.knowledge import VIEW_METHODS
from gradcheck_lint.model.name_sources import sources_of
from gradcheck_lint.model.scopes import Part
from gradcheck_lint.model.syntax import dotted_name
from gradcheck_lint.model.values import NOTHING, Kind
from gradcheck_lint.rules._rule import Rule, Violation
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel


class DataWrite(Rule):
    """A tensor is written through ``.data`` between forward and backward."""

    entry = catalogue.DATA_WRITE

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield every write through .data between a forward and its backward, or in a forward."""
        if "data" not in function.scope.words:
            return
        name = function.scope.name
        scopes = function.module.scopes
        if name.endswith(".forward") and scopes.derives_from(function.scope.owner, "torch.nn.Mod"):
            yield from _on_activations(function)
        if Part.BACKWARD not in function.scope.parts:
            return
        events = list(function.events())
        backwards = [event for event in events if isinstance(event, Backward)]
        if not backwards:
            return
        for index, event in enumerate(events):
            if not isinstance(event, InPlace) or _data_in(event.target, function) is None:
                continue
            before = [other for other in events[:index] if isinstance(other, Forward)]
            after = [other for other in events[index + 1 :] if isinstance(other, Backward)]
            forward = next((other for other in reversed(before) if _together(other, event)), None)
            backward = next((other for other in after if _together(other, event)), None)
            if forward is None or backward is None or event.target is None:
                continue
            if any(
                isinstance(other, Backward) for other in events[events.index(forward) : index]
            ) or any(
                isinstance(other, Forward) for other in events[index : events.index(backward)]
            ):
                continue
            yield Violation(
                event.node,
                f"`{source_of(function.module, event.target)}` is written between a forward "
                "and its backward, where torch can't see it: gradients are computed with the new "
                "values",
                Severity.WARNING,
                "write after backward() and step(), under `with torch.no_grad():`",
                ((forward.node, "the forward"), (backward.node, "its backward")),
            )


def _on_activations(function: FunctionModel) -> Iterator[Violation]:
    """Yield writes through .data to what a layer has made in the same forward."""
    for event in function.events():
        if not isinstance(event, InPlace) or event.mode is GradMode.DISABLED:
            continue
        data = _data_in(event.target, function)
        name = (dotted_name(data.value) if data is not None else None) or ""
        held = function.bindings.get(name, NOTHING)
        if held and all(value.through or value.kind is Kind.HISTORY for value in held):
            yield Violation(
                event.node,
                f"autograd doesn't see this write: backward goes through `{name}` as if it had "
                "not been changed, and what an operation has saved of it is another value now",
                Severity.WARNING,
                f"write `{name}` itself, out of place: torch.where, clamp and the like",
            )


def _data_in(
    node: cst.CSTNode | None, function: FunctionModel, depth: int = 0
) -> cst.Attribute | None:
    """Return the ``x.data`` that a written expression goes through, but not a gradient's.

    ``raw = x.data`` gives it another name, and ``x.data.view(-1)`` has the same memory.
    """
    found: cst.Attribute | None = None
    while isinstance(node, (cst.Attribute, cst.Subscript, cst.Call)):
        if isinstance(node, cst.Attribute):
            if "grad" in node.attr.value:
                return None
            found = node if node.attr.value == "data" and found is None else found
            node = node.value
        elif isinstance(node, cst.Subscript):
            node = node.value
        else:
            is_view = isinstance(node.func, cst.Attribute) and node.func.attr.value in _SAME_MEMORY
            if not is_view:
                return None
            assert isinstance(node.func, cst.Attribute)
            node = node.func.value
    if found is None and isinstance(node, cst.Name) and depth < _MOST_NAMES:
        sources = sources_of(function.scope).get(node.value) or []
        if len(sources) == 1:
            return _data_in(sources[0], function, depth + 1)
    return found


_SAME_MEMORY = VIEW_METHODS | {"flatten", "numpy", "reshape"}
_MOST_NAMES = 2


def _together(other: Forward | Backward, event: InPlace) -> bool:
    """Tell whether an event comes in the same iteration as a write, or in a loop around it."""
    return event.loops[: len(other.loops)] == other.loops and (
        event.arms[: len(other.arms)] == other.arms
    )
