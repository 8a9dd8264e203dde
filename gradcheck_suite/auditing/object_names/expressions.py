"""By which expressions of the running lines an object is reached."""

from __future__ import annotations

import ast
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from gradcheck_suite.auditing.call_sites import user_frames, variables_of
from gradcheck_suite.auditing.object_names.held_tensors import only_assignment
from gradcheck_suite.auditing.source_analysis.source import function_at, tree_of
from gradcheck_suite.findings import Location

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Way", "ways_to"]

_FRAMES = 6
"""Running functions of the user's that are looked at, from the innermost. A bound on cost: what is
called in a helper is mostly named two or three calls further out."""


class Way(NamedTuple):
    """An expression of a running line, and whose variable, attribute or item it names.

    Attributes:
        text: as the source has it, ``self.target``.
        key: the last name of it, which an assignment sets.
        holder: the identity of the object, function or module whose name it is.
        of_module: whether that is an ``nn.Module``'s own part.
        file: where the line is.
    """

    text: str
    key: str
    holder: int
    of_module: bool
    file: str

    def assigned_at(self) -> Location | None:
        """Return the one line that assigns to it: of the same file as it is written, or of any."""
        tree = tree_of(self.file)
        lines = {
            node.lineno
            for node in (ast.walk(tree) if tree is not None else ())
            if isinstance(node, (ast.Name, ast.Attribute))
            and isinstance(node.ctx, ast.Store)
            and ast.unparse(node) == self.text
        }
        if len(lines) != 1:
            return only_assignment(self.key)
        (line,) = lines
        return Location(self.file, line, function=function_at(self.file, line))


def ways_to(is_wanted: Callable[[object], bool]) -> list[Way]:
    """Return the expressions in the running lines that stand for such an object, innermost first.

    No attribute is computed: what an object has in its dictionary is looked at.
    """
    found: list[Way] = []
    for count, frame in enumerate(user_frames()):
        if count >= _FRAMES:
            break
        code = frame.f_code
        expressions = _expressions_at(code.co_filename, frame.f_lineno)
        variables = variables_of(frame) if expressions else {}
        for expression in expressions:
            value, holder = _resolved(expression, variables, frame.f_globals, id(code))
            if holder is not None and is_wanted(value):
                text = ast.unparse(expression)
                found.append(Way(text, _last_name(expression), *holder, code.co_filename))
    return found


@lru_cache(maxsize=512)
def _expressions_at(file: str, line: int) -> tuple[ast.expr, ...]:
    """Return the names, attributes and items in the innermost statement on a line."""
    tree = tree_of(file)
    statement = None if tree is None else _statement_at(tree, line)
    return () if statement is None else tuple(_expressions_in(statement))


def _statement_at(block: ast.AST, line: int) -> ast.stmt | None:
    """Return the innermost statement on a line."""
    for child in ast.iter_child_nodes(block):
        if isinstance(child, (ast.ExceptHandler, ast.match_case)):
            inner = _statement_at(child, line)
            if inner is not None:
                return inner
        elif isinstance(child, ast.stmt) and child.lineno <= line <= (child.end_lineno or line):
            return _statement_at(child, line) or child
    return None


def _expressions_in(node: ast.AST) -> Iterator[ast.expr]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            continue
        if isinstance(child, (ast.Name, ast.Attribute, ast.Subscript)):
            yield child
        yield from _expressions_in(child)


def _resolved(
    node: ast.expr, variables: dict[str, object], everywhere: dict[str, Any], code: int
) -> tuple[object, tuple[int, bool] | None]:
    """Return what an expression stands for, and whose it is; no holder where that is not known."""
    if isinstance(node, ast.Name):
        if node.id in variables:
            return variables[node.id], (code, False)
        return everywhere.get(node.id), (id(everywhere), False)
    if not isinstance(node, (ast.Attribute, ast.Subscript)):
        return None, None
    owner, holder = _resolved(node.value, variables, everywhere, code)
    if holder is None:
        return None, None
    value, of_module = _part_of(owner, node)
    return value, (id(owner), of_module)


def _part_of(owner: object, node: ast.Attribute | ast.Subscript) -> tuple[object, bool]:
    """Return an attribute or item, and whether it is a part of a module; None for none."""
    if isinstance(node, ast.Subscript):
        key = node.slice
        is_item = type(owner) is dict and isinstance(key, ast.Constant)
        return (owner.get(key.value) if is_item else None), False  # type: ignore[attr-defined]
    own = getattr(owner, "__dict__", None)
    if type(own) is not dict:
        return None, False
    parts = own.get("_modules")
    if node.attr in own or not isinstance(parts, dict):
        return own.get(node.attr), False
    return parts.get(node.attr), True


def _last_name(node: ast.expr) -> str:
    match node:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
        case ast.Subscript(slice=ast.Constant(value=key)):
            return str(key)
        case _:
            return ""
