"""What a function still reads, under names it had bound before, once a call in it has returned."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from gradcheck_suite.auditing.call_sites import location_of
from gradcheck_suite.auditing.source_analysis.source import (
    innermost,
    name_of,
    root_key,
    span_at,
    span_of,
    tree_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import CodeType

__all__ = ["LaterReads", "reads_after", "written_by"]

_ABOUT = frozenset(
    {"data_ptr", "device", "dim", "dtype", "element_size", "grad_fn", "is_cuda", "is_leaf", "ndim"}
    | {"nelement", "numel", "requires_grad", "shape", "size", "stride", "append", "extend"}
    | {"clear", "copy_", "zero_", "fill_"}
)
"""Attributes that ask nothing of the contents, and what replaces them."""

_SIMPLE = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Return)


@dataclass(frozen=True, slots=True)
class LaterReads:
    """What is read once the result of a call is there.

    Attributes:
        names: variables, and attributes of ``self`` as ``self.name``, that were bound before the
            call and are read after it, before they are bound anew.
        results: what of those that the result is bound to is read afterwards.
        function: what is called, if it has a name.
    """

    names: tuple[str, ...]
    results: tuple[str, ...]
    function: str | None


@lru_cache(maxsize=512)
def reads_after(code: CodeType, offset: int) -> LaterReads | None:
    """Return what is read after the call at an offset; None where its result is thrown away.

    Nor is anything known where the source can't be read, or the call stands in the head of a loop,
    of a condition or of a ``with``. What a loop reads when it comes round again is not looked at.
    """
    place, span = location_of((code, offset)), span_at((code, offset))
    tree = None if place is None else tree_of(place.path)
    if place is None or span is None or tree is None:
        return None
    scope = innermost(tree, span[0]) or tree
    if isinstance(scope, ast.FunctionDef) and scope.name != code.co_name:
        return None
    found = _statement_at(scope.body, span[0], ())
    if found is None or not isinstance(found[0], _SIMPLE):
        return None
    statement, following = found
    call = next(
        (
            node
            for node in ast.walk(statement)
            if isinstance(node, ast.Call) and span_of(node) == (span[0], span[1], span[2], span[3])
        ),
        None,
    )
    if call is None:
        return None
    bound = _bound_by(statement)
    beside = {key for key, _ in _loads(statement, apart_from=call)} - bound
    names = [key for key in _keys_of(scope) if key not in bound]
    later = tuple(key for key in names if key in beside or _is_read(key, following))
    results = tuple(key for key in sorted(bound) if _is_read(key, following))
    return LaterReads(later, results, name_of(call))


@lru_cache(maxsize=512)
def written_by(code: CodeType, offset: int) -> str | None:
    """Return what the statement at an offset writes into in place, as ``x`` or ``self.x``."""
    place = location_of((code, offset))
    tree = None if place is None else tree_of(place.path)
    if place is None or tree is None:
        return None
    found = _statement_at((innermost(tree, place.line) or tree).body, place.line, ())
    statement = None if found is None else found[0]
    if isinstance(statement, ast.AugAssign):
        return root_key(statement.target)
    if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Subscript):
        return root_key(statement.targets[0])
    if isinstance(statement, (ast.Expr, ast.Assign)) and isinstance(statement.value, ast.Call):
        node: ast.expr = statement.value
        while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            node = node.func.value
        return root_key(node)
    return None


def _statement_at(
    body: Sequence[ast.stmt], line: int, after: tuple[Sequence[ast.stmt], ...]
) -> tuple[ast.stmt, tuple[Sequence[ast.stmt], ...]] | None:
    """Return the innermost statement around a line, and what follows it, the nearest first."""
    for index, statement in enumerate(body):
        if not statement.lineno <= line <= (statement.end_lineno or statement.lineno):
            continue
        following = (body[index + 1 :], *after)
        blocks = [getattr(statement, field, []) for field in ("body", "orelse", "finalbody")]
        blocks += [handler.body for handler in getattr(statement, "handlers", [])]
        blocks += [case.body for case in getattr(statement, "cases", [])]
        for block in blocks:
            if isinstance(block, list):
                inner = _statement_at(block, line, following)
                if inner is not None:
                    return inner
        return statement, following
    return None


def _keys_of(scope: ast.AST) -> list[str]:
    return list(dict.fromkeys(key for key, _ in _loads(scope)))


def _loads(scope: ast.AST, apart_from: ast.AST | None = None) -> Iterator[tuple[str, ast.expr]]:
    """Yield the variables and attributes of ``self`` that are read for their contents."""
    waiting: list[ast.AST] = [scope]
    while waiting:
        node = waiting.pop()
        if node is apart_from or (isinstance(node, ast.Call) and _is_over_before(node, apart_from)):
            continue
        if isinstance(node, ast.Attribute) and node.attr in _ABOUT:
            continue
        if isinstance(node, ast.Call) and name_of(node) in {"len", "isinstance", "type", "id"}:
            continue
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id == "self" and isinstance(node.ctx, ast.Load):
                yield f"self.{node.attr}", node
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            yield node.id, node
        waiting += ast.iter_child_nodes(node)


def _is_over_before(node: ast.Call, call: ast.AST | None) -> bool:
    """Return whether a call has returned when another begins, as it is written before it."""
    if not isinstance(call, ast.Call):
        return False
    end = node.end_lineno or node.lineno, node.end_col_offset or 0
    return end <= (call.lineno, call.col_offset)


def _bound_by(statement: ast.stmt) -> set[str]:
    """Return the variables, and attributes of ``self``, that a statement binds."""
    found = set()
    for node in ast.walk(statement):
        if isinstance(node, (ast.Name, ast.Attribute)) and not isinstance(node.ctx, ast.Load):
            key = root_key(node)
            if key is not None:
                found.add(key)
    return found


def _is_read(key: str, following: tuple[Sequence[ast.stmt], ...]) -> bool:
    for block in following:
        for statement in block:
            simple = not hasattr(statement, "body")
            reads = any(name == key for name, _ in _loads(statement))
            if simple and reads:
                return True
            if simple and key in _bound_by(statement):
                return False
            if not simple:
                first = _first_use(statement, key) if reads else None
                if first == "read":
                    return True
            if isinstance(statement, (ast.Return, ast.Raise)):
                return False
            if isinstance(statement, (ast.Break, ast.Continue)):
                break
    return False


def _first_use(statement: ast.stmt, key: str) -> str | None:
    """Return what a compound statement does with a name first, as it is written down."""
    if isinstance(statement, (ast.For, ast.AsyncFor)) and key in _bound_by(
        ast.Expr(statement.target)
    ):
        return "bound"
    places = [(node.lineno, 0, "read") for name, node in _loads(statement) if name == key]
    places += [
        (node.lineno, 1, "bound")  # what a line binds, it has computed before
        for node in ast.walk(statement)
        if isinstance(node, (ast.Name, ast.Attribute)) and not isinstance(node.ctx, ast.Load)
        if root_key(node) == key
    ]
    return min(places)[2] if places else None
