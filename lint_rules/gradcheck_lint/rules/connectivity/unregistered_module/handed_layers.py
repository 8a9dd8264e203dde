"""Tell what a container holds that a constructor was given, by the calls in the file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import libcst as cst

from gradcheck_lint.analyses.callers import expressions_given
from gradcheck_lint.analyses.layers import contents, kind_of
from gradcheck_lint.model.name_sources import sources_of
from gradcheck_lint.model.syntax import dotted_name, positional

if TYPE_CHECKING:
    from gradcheck_lint.model.module import FunctionModel

__all__ = ["kinds_handed_in"]

_REGISTERING: Final = frozenset({"torch.nn.ModuleList", "torch.nn.ModuleDict"})


def kinds_handed_in(value: cst.BaseExpression, function: FunctionModel) -> set[str | None]:
    """Return "likely" where every call gives layers, "elsewhere" where somebody else has them too.

    ``self.heads = list(heads)`` takes them out of a ModuleList as well; ``self.heads = heads``
    keeps one as it is.
    """
    name, is_copied = _argument_in(value)
    if name is None or name not in function.scope.parameters:
        return set()
    if sources_of(function.scope).get(name, []) != []:
        return set()
    kinds: set[str | None] = set()
    for caller, given in expressions_given(function, name):
        sources = sources_of(caller.scope).get(given.value) if type(given) is cst.Name else None
        made = sources[0] if sources is not None and len(sources) == 1 else given
        if not _are_layers(made, caller, is_copied=is_copied):
            return set()
        kinds.add("elsewhere" if made is not given and _is_used(given, caller) else "likely")
    return kinds


def _argument_in(value: cst.BaseExpression) -> tuple[str | None, bool]:
    """Return the name whose elements a container has, and whether it is a new container."""
    if type(value) is cst.Name:
        return value.value, False
    given = positional(value) if type(value) is cst.Call else []
    if type(value) is cst.Call and dotted_name(value.func) in {"list", "tuple", "dict"}:
        return (dotted_name(given[0]) if len(given) == 1 else None), True
    if type(value) is cst.ListComp:
        is_element = dotted_name(value.elt) == dotted_name(value.for_in.target) is not None
        return (dotted_name(value.for_in.iter) if is_element else None), True
    if isinstance(value, (cst.List, cst.Tuple)) and len(value.elements) == 1:
        (only,) = value.elements
        return (dotted_name(only.value) if type(only) is cst.StarredElement else None), True
    return None, False


def _are_layers(made: cst.BaseExpression, caller: FunctionModel, *, is_copied: bool) -> bool:
    if type(made) is cst.Call:
        name = caller.module.scopes.resolve_import(dotted_name(made.func) or "")
        if name in _REGISTERING:
            given = positional(made)
            return is_copied and bool(given) and _has_layers(given[0], caller)
    return _has_layers(made, caller)


def _has_layers(made: cst.BaseExpression, caller: FunctionModel) -> bool:
    elements = [made.elt] if type(made) is cst.GeneratorExp else contents(made)
    return bool(elements) and all(kind_of(each, caller) == "module" for each in elements)


def _is_used(given: cst.BaseExpression, caller: FunctionModel) -> bool:
    """Return whether a name is read in the caller at other places than in one call."""
    names = [
        node
        for node in caller.scope.nodes_of(cst.Name)
        if type(given) is cst.Name and node.value == given.value
    ]
    return len(names) > 2  # noqa: PLR2004 - bound and handed over
