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


def quick_maker(kind: type[cst.CSTNode], *fields: str) -> Callable[..., Any]:
    """Return the same as ``maker``, made in more time and used in less: for the commonest nodes.

    A node begins as one of a class that is not frozen, whose fields are simply assigned to. That
    is fastest with their names in the code, which is why there is code to be run.
    """
    lines = [
        f"def make({', '.join(fields)}):",
        "    node = thawed()",
        *(f"    node.{field} = {field}" for field in fields),
        "    node.__class__ = kind",
        "    return node",
    ]
    make_class: Any = type(kind)
    thawed = make_class(kind.__name__, (kind,), dict(_THAWED))
    scope: dict[str, Any] = {"thawed": thawed, "kind": kind}
    exec("\n".join(lines), scope)
    make: Callable[..., Any] = scope["make"]
    return make


_THAWED: Final = {
    "__slots__": (),
    "__new__": object.__new__,
    "__init__": object.__init__,
    "__setattr__": object.__setattr__,
    "__delattr__": object.__delattr__,
}


def bare(kind: type[cst.CSTNode]) -> Any:
    """Return a node of which no field is set."""
    return object.__new__(kind)


make_name = quick_maker(cst.Name, "value", ORIGIN)
make_attribute = quick_maker(cst.Attribute, "value", "attr", ORIGIN)
make_tuple = quick_maker(cst.Tuple, "elements", ORIGIN)
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
