"""Find the one statement of a file that makes a named thing grow."""

from __future__ import annotations

import ast
import linecache
from typing import TYPE_CHECKING

from gradcheck_suite.findings import Location

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["growth_site"]

_GROWING_METHODS = frozenset(
    {"add", "append", "appendleft", "extend", "extendleft", "insert", "setdefault", "update"}
)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def growth_site(file: str, name: str, *, function: str | None = None) -> Location | None:
    """Return the statement that adds to ``name``, if the source has exactly one.

    Args:
        file: the source file, or the name under which a notebook cell was compiled.
        name: a variable (``losses``) or an attribute (``losses`` of any object).
        function: look in the functions of this qualified name only.

    Returns:
        None where there is no source, no such statement, or more than one: then which of them
        did it isn't known.
    """
    source = "".join(linecache.getlines(file))
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return None
    sites = [
        (statement, scope)
        for statement, scope in _statements(tree, ())
        if (function is None or scope == function) and _grows(statement, name)
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


def _grows(statement: ast.stmt, name: str) -> bool:
    if isinstance(statement, ast.Expr):
        call = statement.value
        return (
            isinstance(call, ast.Call)
            and isinstance(call.func, ast.Attribute)
            and call.func.attr in _GROWING_METHODS
            and _leads_to(call.func.value, name)
        )
    if isinstance(statement, ast.AugAssign):
        return _leads_to(statement.target, name)
    if isinstance(statement, ast.Assign):
        return any(
            # history[step] = loss
            (isinstance(target, ast.Subscript) and _leads_to(target, name))
            # total = total + loss
            or (_is_called(target, name) and _mentions(statement.value, name))
            for target in statement.targets
        )
    return False


def _leads_to(node: ast.expr, name: str) -> bool:
    while isinstance(node, ast.Subscript):
        node = node.value
    return _is_called(node, name)


def _is_called(node: ast.expr, name: str) -> bool:
    return (isinstance(node, ast.Name) and node.id == name) or (
        isinstance(node, ast.Attribute) and node.attr == name
    )


def _mentions(node: ast.expr, name: str) -> bool:
    return any(
        _is_called(part, name) for part in ast.walk(node) if isinstance(part, ast.expr)
    )
