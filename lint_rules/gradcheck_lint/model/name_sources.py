"""Say what the names of one function are bound to, where all of it can be read."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import libcst as cst

from gradcheck_lint.model.syntax import bound_names, child_list

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.scopes import FunctionScope

Sources: TypeAlias = "dict[str, list[cst.BaseExpression] | None]"


def sources_of(scope: FunctionScope) -> Sources:
    """Return the expressions that each name of a function is given, in source order.

    A name that is bound in another way as well (by a loop, an unpacking, a ``with``) has None. What
    a parameter holds at first is no expression, and neither are ``x += 1`` and ``x[i] = 0``. It is
    read once for each function; nobody may change it.
    """
    if scope.sources is None:
        scope.sources = _read(scope)
    return scope.sources


def _read(scope: FunctionScope) -> Sources:
    found: Sources = {}
    for node in scope.nodes:
        for name, source in _bindings(node):
            known = found.setdefault(name, [])
            if source is None or known is None:
                found[name] = None
            else:
                known.append(source)
    found.update(dict.fromkeys(scope.nested))
    return found


def augmented_names(scope: FunctionScope) -> frozenset[str]:
    """Return the plain names that ``+=`` and the like change."""
    return frozenset(
        node.target.value for node in scope.nodes_of(cst.AugAssign) if type(node.target) is cst.Name
    )


def _bindings(node: cst.CSTNode) -> Iterator[tuple[str, cst.BaseExpression | None]]:
    """Yield the names that a node binds, each with the expression that it is given, if any."""
    kind = type(node)
    if kind is cst.Assign:
        for target in node.targets:  # type: ignore[attr-defined]
            yield from _unpacked(target.target, node.value)  # type: ignore[attr-defined]
    elif kind is cst.AnnAssign:
        if node.value is not None:  # type: ignore[attr-defined]
            yield from _unpacked(node.target, node.value)  # type: ignore[attr-defined]
    elif kind is cst.NamedExpr:
        yield from _unpacked(node.target, node.value)  # type: ignore[attr-defined]
    elif kind in _WITH_TARGET:
        yield from ((name, None) for name in _names(node.target))  # type: ignore[attr-defined]
    elif kind is cst.AsName or kind is cst.MatchAs or kind is cst.MatchStar:
        if node.name is not None:  # type: ignore[attr-defined]
            yield from ((name, None) for name in _names(node.name))  # type: ignore[attr-defined]
    elif kind is cst.Global or kind is cst.Nonlocal:
        for item in node.names:  # type: ignore[attr-defined]
            yield item.name.value, None


_WITH_TARGET = frozenset({cst.For, cst.CompFor})


def _unpacked(
    target: cst.BaseExpression, value: cst.BaseExpression
) -> Iterator[tuple[str, cst.BaseExpression | None]]:
    if type(target) is cst.Name:
        yield target.value, value
    elif (
        isinstance(target, (cst.Tuple, cst.List))
        and isinstance(value, (cst.Tuple, cst.List))
        and len(target.elements) == len(value.elements)
        and not any(
            type(each) is cst.StarredElement for each in (*target.elements, *value.elements)
        )
    ):
        for one, other in zip(target.elements, value.elements, strict=True):
            yield from _unpacked(one.value, other.value)
    elif isinstance(target, (cst.Tuple, cst.List)):
        yield from ((name, None) for name in bound_names(target) if "." not in name)


def _names(target: cst.CSTNode) -> Iterator[str]:
    """Yield the plain names of a target; what is written to elements or attributes has none."""
    if type(target) is cst.Name:
        yield target.value
    elif isinstance(target, (cst.Tuple, cst.List, cst.StarredElement, cst.Element)):
        for below in child_list(target):
            yield from _names(below)
