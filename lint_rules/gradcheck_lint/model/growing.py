"""Find what is put to what was there before: ``x = torch.cat([x, y])``, ``d[k] = d[k] + y``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from gradcheck_lint.model.statement_forms import terms
from gradcheck_lint.model.syntax import dotted_name, positional

if TYPE_CHECKING:
    from collections.abc import Callable

    from gradcheck_lint.model.scopes import Scopes

__all__ = ["added_to_item", "added_to_list", "grows", "joined_to"]

_JOINING = frozenset(
    f"torch.{name}"
    for name in ("cat", "concat", "concatenate", "hstack", "vstack", "row_stack", "column_stack")
)


def joined_to(path: str, source: cst.BaseExpression, scopes: Scopes) -> cst.BaseExpression | None:
    """Return what ``torch.cat`` and the like join to a tensor, None for anything else."""
    if type(source) is not cst.Call or not source.args:
        return None
    parts = source.args[0].value
    if type(parts) is not cst.List and type(parts) is not cst.Tuple:
        return None
    if scopes.resolve_import(dotted_name(source.func) or "") not in _JOINING:
        return None
    elements = [element.value for element in parts.elements]
    others = [element for element in elements if dotted_name(element) != path]
    return others[0] if others and len(others) < len(elements) else None


def added_to_list(path: str, source: cst.BaseExpression) -> list[cst.BaseExpression]:
    """Return what ``[*known, y]`` or ``known + [y]`` adds to a list."""
    if type(source) is cst.BinaryOperation and type(source.operator) is cst.Add:
        added = source.right
        if dotted_name(source.left) != path or type(added) is not cst.List:
            return []
        return [element.value for element in added.elements]
    if type(source) is not cst.List:
        return []
    others = [
        element.value
        for element in source.elements
        if type(element) is not cst.StarredElement or dotted_name(element.value) != path
    ]
    return others if len(others) < len(source.elements) else []


def grows(path: str, source: cst.BaseExpression) -> bool:
    """Tell whether this is what a dotted name held before, with something added or multiplied."""
    if type(source) is cst.BinaryOperation:
        return any(dotted_name(term) == path for term in terms(source))
    return bool(added_to_list(path, source))


def added_to_item(
    target: cst.Subscript, source: cst.BaseExpression, text_of: Callable[[cst.CSTNode], str]
) -> list[cst.BaseExpression]:
    """Return what ``sums[key] = sums[key] + y``, also with ``sums.get(key, 0)``, adds."""
    known = terms(source)
    others = [term for term in known if not _is_item(term, target, text_of)]
    return others if len(others) < len(known) else []


def _is_item(
    node: cst.BaseExpression, target: cst.Subscript, text_of: Callable[[cst.CSTNode], str]
) -> bool:
    if type(node) is cst.Subscript:
        return text_of(node) == text_of(target)
    if type(node) is not cst.Call or type(node.func) is not cst.Attribute or len(target.slice) != 1:
        return False
    key, given = target.slice[0].slice, positional(node)
    return (
        node.func.attr.value == "get"
        and type(key) is cst.Index
        and bool(given)
        and text_of(given[0]) == text_of(key.value)
        and text_of(node.func.value) == text_of(target.value)
    )
