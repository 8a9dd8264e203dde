"""Make nodes of libcst cheaply: past their constructors, with only the fields that rules read."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any, Final

import libcst as cst

if TYPE_CHECKING:
    from collections.abc import Callable


ORIGIN: Final = "rpar"
"""The field of expressions, which rules never look at, that holds what they were made of."""

SMALL_ORIGIN: Final = "semicolon"
COMPOUND_ORIGIN: Final = "leading_lines"
"""The fields of statements that do so."""


class UnsupportedSyntaxError(Exception):
    """The source has something that a skeleton leaves to libcst."""


def maker(kind: type[cst.CSTNode], *fields: str) -> Callable[..., Any]:
    """Return what makes a node of which only some fields are set, past its constructor.

    Constructors of libcst's frozen classes take four times as long.
    """
    new = object.__new__
    setters = [getattr(kind, field).__set__ for field in fields]
    if len(setters) == 1:
        (only,) = setters

        def make_one(value: object) -> cst.CSTNode:
            node = new(kind)
            only(node, value)
            return node

        return make_one
    if len(setters) == 2:  # noqa: PLR2004 - two
        first, second = setters

        def make_two(value: object, other: object) -> cst.CSTNode:
            node = new(kind)
            first(node, value)
            second(node, other)
            return node

        return make_two
    if len(setters) == 3:  # noqa: PLR2004 - three
        one, two, three = setters

        def make_three(value: object, other: object, third: object) -> cst.CSTNode:
            node = new(kind)
            one(node, value)
            two(node, other)
            three(node, third)
            return node

        return make_three

    def make(*values: object) -> cst.CSTNode:
        node = new(kind)
        for setter, value in zip(setters, values, strict=True):
            setter(node, value)
        return node

    return make


def bare(kind: type[cst.CSTNode]) -> Any:
    """Return a node of which no field is set."""
    return object.__new__(kind)


make_name = maker(cst.Name, "value", ORIGIN)
make_attribute = maker(cst.Attribute, "value", "attr", ORIGIN)
make_tuple = maker(cst.Tuple, "elements", ORIGIN)
make_from = maker(cst.From, "item")

ASYNCHRONOUS: Final = bare(cst.Asynchronous)
DEFAULT: Final = cst.MaybeSentinel.DEFAULT


def origin_of(node: cst.CSTNode) -> ast.expr | ast.stmt | None:
    """Return what a node was made of, None if nothing of ``ast`` stands for it alone."""
    for name in (ORIGIN, SMALL_ORIGIN, COMPOUND_ORIGIN):
        origin = getattr(node, name, None)
        if isinstance(origin, (ast.expr, ast.stmt)):
            return origin
    return None
