"""Find the statement that puts a tensor where it is kept."""

from __future__ import annotations

import ast
import linecache
from typing import TYPE_CHECKING

from gradcheck_suite.auditing.source_analysis.container_growth import growth_of
from gradcheck_suite.findings import Location

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_suite.auditing.object_names.referrers import Owner

__all__ = ["line_that_keeps"]


def line_that_keeps(owner: Owner, *, near: str | None = None) -> Location | None:
    """Return the one statement that adds to what the owner names, or binds it to a value.

    Args:
        owner: by which name the program reaches the tensor.
        near: a file to look in for an attribute that the file of its class never sets.
    """
    named = owner.grows
    if named is None:
        return None
    files = [*named.files, near] if named.attribute and near else named.files
    for file in dict.fromkeys(files):
        site = growth_of(
            file, named.name, function=named.function, attribute=named.attribute
        ).site or _only_binding(file, named.name, attribute=named.attribute)
        if site is not None:
            return site
    return None


def _only_binding(file: str, name: str, *, attribute: bool) -> Location | None:
    """Return the statement that binds the name to something that may hold a graph, if it is one."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError, RecursionError):
        return None
    found = [
        (statement, function)
        for statement, function in _statements(tree, ())
        if _binds(statement, name, attribute=attribute)
    ]
    if len(found) != 1:
        return None
    ((statement, function),) = found
    return Location(
        path=file,
        line=statement.lineno,
        column=statement.col_offset + 1,
        end_line=statement.end_lineno,
        end_column=None if statement.end_col_offset is None else statement.end_col_offset + 1,
        function=function,
    )


def _statements(tree: ast.AST, scope: tuple[str, ...]) -> Iterator[tuple[ast.stmt, str | None]]:
    for child in ast.iter_child_nodes(tree):
        inner = scope
        if isinstance(child, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            inner = (*scope, child.name)
        if isinstance(child, ast.stmt):
            yield child, ".".join(scope) or None
        yield from _statements(child, inner)


def _binds(statement: ast.stmt, name: str, *, attribute: bool) -> bool:
    if isinstance(statement, ast.Assign):
        targets, value = statement.targets, statement.value
    elif isinstance(statement, (ast.AnnAssign, ast.AugAssign)) and statement.value is not None:
        targets, value = [statement.target], statement.value
    else:
        return False
    return not _is_empty(value) and any(
        node.attr == name
        if attribute and isinstance(node, ast.Attribute)
        else not attribute and isinstance(node, ast.Name) and node.id == name
        for target in targets
        for node in ast.walk(target)
        if isinstance(getattr(node, "ctx", None), ast.Store)
    )


def _is_empty(value: ast.expr) -> bool:
    """Return whether a value holds nothing yet: a constant, or a container without contents."""
    if isinstance(value, (ast.List, ast.Tuple, ast.Set)):
        return not value.elts
    if isinstance(value, ast.Dict):
        return not value.values
    return isinstance(value, ast.Constant)
