"""Find the one statement of a file that makes a named thing grow."""

from __future__ import annotations

import ast
import linecache
from typing import TYPE_CHECKING, TypeAlias

from gradcheck_suite.findings import Location

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["growth_site"]

_GROWING_METHODS = frozenset(
    {"add", "append", "appendleft", "extend", "extendleft", "insert", "setdefault", "update"}
)


def growth_site(
    file: str, name: str, *, function: str | None = None, attribute: bool = False
) -> Location | None:
    """Return the statement that adds to ``name``, if the source has exactly one.

    Args:
        file: the source file, or the name under which a notebook cell was compiled.
        name: the name of a variable or attribute.
        function: look in the functions of this qualified name only.
        attribute: whether ``name`` is an attribute (of any object) and not a variable.

    Returns:
        None where there is no source, no such statement, or more than one: then which of them
        did it isn't known.
    """
    source = "".join(linecache.getlines(file))
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return None
    wanted = ast.Attribute if attribute else ast.Name
    sites = [
        (statement, scope)
        for statement, scope in _statements(tree, ())
        if (function is None or scope == function) and _grows(statement, wanted, name)
    ]
    if len(sites) != 1:
        return None
    statement, scope = sites[0]
    return Location(
        path=file,
        line=statement.lineno,
        column=statement.col_offset + 1,
        end_line=statement.end_lineno,
        end_column=None if statement.end_col_offset is None else statement.end_col_offset + 1,
        function=scope or None,
    )


def _statements(tree: ast.AST, scope: tuple[str, ...]) -> Iterator[tuple[ast.stmt, str]]:
    for child in ast.iter_child_nodes(tree):
        inner = scope
        if isinstance(child, ast.ClassDef):
            inner = (*scope, child.name)
        elif isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
            inner = (*scope, child.name, "<locals>")
        if isinstance(child, ast.stmt):
            yield child, ".".join(scope).removesuffix(".<locals>")
        yield from _statements(child, inner)


_Named: TypeAlias = "type[ast.Name] | type[ast.Attribute]"


def _grows(statement: ast.stmt, wanted: _Named, name: str) -> bool:
    if isinstance(statement, ast.Expr):
        call = statement.value
        return (
            isinstance(call, ast.Call)
            and isinstance(call.func, ast.Attribute)
            and call.func.attr in _GROWING_METHODS
            and _leads_to(call.func.value, wanted, name)
        )
    if isinstance(statement, ast.AugAssign):
        return _leads_to(statement.target, wanted, name)
    if isinstance(statement, ast.Assign):
        return any(
            # An item that is set, as in a history by step.
            (isinstance(target, ast.Subscript) and _leads_to(target, wanted, name))
            # A name that is bound to itself and more.
            or (_is_called(target, wanted, name) and _adds_to(statement.value, wanted, name))
            for target in statement.targets
        )
    return False


def _leads_to(node: ast.expr, wanted: _Named, name: str) -> bool:
    while isinstance(node, ast.Subscript):
        node = node.value
    return _is_called(node, wanted, name)


def _is_called(node: ast.AST, wanted: _Named, name: str) -> bool:
    if not isinstance(node, wanted):
        return False
    return (node.id if isinstance(node, ast.Name) else node.attr) == name


def _adds_to(value: ast.expr, wanted: _Named, name: str) -> bool:
    if not isinstance(value, (ast.BinOp, ast.Dict, ast.List, ast.Set, ast.Tuple)):
        return False
    return any(_is_called(part, wanted, name) for part in ast.walk(value))
