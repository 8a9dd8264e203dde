"""GCS503: forward changes an input in place."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from gradcheck_lint.model.flow import InPlace
from gradcheck_lint.model.function_class import AutogradFunction, function_with
from gradcheck_lint.rules._rule import Rule, Violation
from gradcheck_lint.rules.custom_function.aliases import name_written
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel


class MissingMarkDirty(Rule):
    """A forward writes to one of its inputs and does not mark it dirty."""

    entry = catalogue.MISSING_MARK_DIRTY

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield the first write to each input of a forward."""
        known = function_with(function, "forward")
        if known is None or not known.inputs or any(known.saving_calls("mark_dirty")):
            return
        if _hands_on_context(function):
            return
        sites = {id(item.node): item.name for item in known.inputs}
        seen: set[str] = set()
        for event in function.events():
            if not isinstance(event, InPlace) or event.expects_error:
                continue
            name, certain = name_written(event.values, sites)
            if name is None or name in seen or not _is_tensor(event, name, known):
                continue
            if not _matters(known, name):
                continue
            seen.add(name)
            yield Violation(
                event.node,
                f"forward modifies its input `{name}` in place by {event.operation} without "
                "`ctx.mark_dirty`: the caller's tensor changes, and torch does not notice that "
                "saved copies of it are out of date",
                Severity.ERROR if certain and not event.arms else Severity.WARNING,
                f"work on a copy, or call `ctx.mark_dirty({name})` and return `{name}`",
            )


def _matters(known: AutogradFunction, name: str) -> bool:
    """Tell whether an input is differentiated, saved or returned: running statistics are not."""
    place = next(place for place, item in enumerate(known.inputs or ()) if item.name == name)
    if known.backward is None or place in known.differentiated:
        return True
    return name in known.saved or name in known.returned


def _hands_on_context(function: FunctionModel) -> bool:
    """Tell whether another function gets the context, and may mark what it likes."""
    first = function.scope.first_parameter
    return any(
        type(argument.value) is cst.Name and argument.value.value == first
        for node in function.scope.nodes_of(cst.Call)
        for argument in node.args
    )


def _is_tensor(event: InPlace, name: str, function: AutogradFunction) -> bool:
    """Tell whether the input is shown to be a tensor: numbers are changed by `+=` as well."""
    return event.operation.endswith("()") or name in function.tensors
