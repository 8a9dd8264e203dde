"""Say what a plain container that a constructor puts on an attribute holds, and its form."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from gradcheck_lint.analyses.layers import contents, kind_by_name, kind_of
from gradcheck_lint.model.name_sources import sources_of
from gradcheck_lint.model.syntax import dotted_name, last_word
from gradcheck_lint.rules.connectivity.unregistered_module.copied_layers import (
    are_copies_of_argument,
    kinds_returned,
)
from gradcheck_lint.rules.connectivity.unregistered_module.filled_lists import (
    appended,
    is_made_empty,
)
from gradcheck_lint.rules.connectivity.unregistered_module.handed_layers import kinds_handed_in
from gradcheck_lint.rules.connectivity.unregistered_module.registration import is_run

if TYPE_CHECKING:
    from gradcheck_lint.model.module import FunctionModel


def kinds_in(
    value: cst.BaseExpression,
    node: cst.Assign | cst.AnnAssign,
    target: cst.Attribute,
    function: FunctionModel,
) -> set[str | None]:
    """Return the kinds of what is in a container that a constructor puts on an attribute."""
    owner, attribute = function.scope.owner, target.attr.value
    shown = [] if is_made_empty(value) else contents(value)
    elements = [
        each
        for element in shown or appended(node, value, target, function)
        for each in _innermost(element, function)
    ]
    if not elements or not any(type(each) is cst.Call for each in elements):
        handed = kinds_handed_in(value, function)
        if handed or not elements:
            return handed or kinds_returned(value, function)
    kinds = {kind_of(element, function) for element in elements}
    if kinds != {None} or owner is None or not is_run(attribute, owner):
        return kinds
    is_written_out = type(value) is cst.List and bool(value.elements)
    if not is_written_out and are_copies_of_argument(elements, attribute, function):
        return {"likely"}
    return {kind_by_name(element, function) for element in elements}


def _innermost(element: cst.BaseExpression, function: FunctionModel) -> list[cst.BaseExpression]:
    """Return what is in a container in the container, or what makes what a name holds.

    That is where the name is used nowhere else, so that nothing can register it.
    """
    if isinstance(element, _PLAIN):
        return [each for inner in contents(element) for each in _innermost(inner, function)]
    if type(element) is not cst.Name:
        return [element]
    sources = sources_of(function.scope).get(element.value) or []
    named = [node for node in function.scope.nodes_of(cst.Name) if node.value == element.value]
    is_used_once = len(sources) == 1 and len(named) == 2  # noqa: PLR2004 - given and used
    return sources if is_used_once else [element]


_PLAIN = (cst.List, cst.Tuple, cst.Dict, cst.ListComp, cst.DictComp)


def is_nested(value: cst.BaseExpression) -> bool:
    """Tell whether the elements are plain containers, which none of torch's takes."""
    return any(isinstance(element, _PLAIN) for element in contents(value))


_FORMS: dict[type[cst.CSTNode], str] = {
    cst.List: "list",
    cst.ListComp: "list",
    cst.Tuple: "tuple",
    cst.Dict: "dict",
    cst.DictComp: "dict",
}


def form_of(node: cst.BaseExpression) -> str:
    """Return what sort of container an expression makes."""
    if type(node) is cst.Call:
        name = last_word(dotted_name(node.func))
        if name in {"OrderedDict", "defaultdict"}:
            return "dict"
        return name if name in {"dict", "tuple"} else "list"
    return _FORMS.get(type(node), "list")
