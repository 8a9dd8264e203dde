"""GCS506: backward writes into the gradient it was given."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from gradcheck_lint.model.flow import InPlace
from gradcheck_lint.model.function_class import function_with
from gradcheck_lint.model.syntax import dotted_name
from gradcheck_lint.model.values import Kind, Origin
from gradcheck_lint.rules._rule import Rule, Violation
from gradcheck_lint.rules.custom_function.aliases import name_written
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel
    from gradcheck_lint.model.values import Value, Values

_RESHAPES = frozenset(
    {
        *("as_strided_()", "squeeze_()", "swapaxes_()", "swapdims_()", "t_()", "transpose_()"),
        "unsqueeze_()",
    }
)


class GradOutputModified(Rule):
    """A backward writes into the gradient that it was given, which others may use too."""

    entry = catalogue.GRAD_OUTPUT_MODIFIED

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield the first write to each gradient that a backward is given."""
        known = function_with(function, "backward", "vjp")
        if known is None:
            return
        sites = {id(item.node): item.name for item in known.cotangents}
        star = known.starred_cotangents
        seen: set[str] = set()
        for event in function.events():
            if not isinstance(event, InPlace):
                continue
            name, certain = name_written(event.values, sites)
            if name is None and _is_one_of(star, event.values):
                name, certain = function.module.text(_written(event)), True
            if name is None or name in seen:
                continue
            is_itself = any(value.site in sites for value in event.values)
            if event.operation in _RESHAPES and not is_itself:
                continue  # a view of it gets another shape, and no number changes
            seen.add(name)
            yield Violation(
                event.node,
                f"backward modifies `{name}` in place by {event.operation}: the same tensor may be "
                "on its way to other operations, which then get wrong gradients",
                Severity.ERROR if certain and not event.arms else Severity.WARNING,
                f"work on a copy: `{name if name.isidentifier() else 'copy'} = {name}.clone()`",
            )


def _is_one_of(star: cst.Param | None, values: Values) -> bool:
    """Tell whether these are elements of ``*grads``, taken out of it and nothing else."""
    return star is not None and bool(values) and all(_is_element(star, value) for value in values)


def _is_element(star: cst.Param, value: Value) -> bool:
    if value.kind is not Kind.UNKNOWN or value.mentions != {id(star)}:
        return False
    if type(value.node) is cst.Call:
        # `for i, grad in enumerate(grads)`: of another call, who knows what it makes.
        return value.origin is Origin.ELEMENT and dotted_name(value.node.func) == "enumerate"
    return value.origin is Origin.ELEMENT or type(value.node) is cst.Element


def _written(event: InPlace) -> cst.CSTNode:
    return event.node if event.target is None else event.target
