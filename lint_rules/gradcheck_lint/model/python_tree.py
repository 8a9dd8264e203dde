"""Go through CPython's own syntax trees, past the fields that never hold a node."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_HOLD_NO_NODES: Final = frozenset(
    {
        *("id", "attr", "arg", "name", "names", "module", "level", "asname", "rest", "kwd_attrs"),
        *("ctx", "op", "ops", "kind", "conversion", "is_async", "simple", "type_comment"),
        "str",
    }
)
"""Fields of text and numbers, and of what tells operators and contexts apart."""
_FIELDS: Final[dict[type[ast.AST], tuple[str, ...]]] = {ast.Constant: (), ast.MatchSingleton: ()}
_HEAD_FIELDS: Final[dict[type[ast.AST], tuple[str, ...]]] = {}


def _fields_of(kind: type[ast.AST]) -> tuple[str, ...]:
    found = _FIELDS.get(kind)
    if found is None:
        found = _FIELDS[kind] = tuple(name for name in kind._fields if name not in _HOLD_NO_NODES)
    return found


def child_nodes(node: ast.AST) -> list[ast.AST]:
    """Return the nodes directly below ``node``, without operators and the aliases of imports.

    ``ast.iter_child_nodes`` takes four times as long.
    """
    kind = type(node)
    known = _BELOW.get(kind)
    return _nodes_in(node, _fields_of(kind)) if known is None else known(node)


def head_nodes(node: ast.AST) -> list[ast.AST]:
    """Return the nodes directly below a statement, or a part of one, that are in no block of it."""
    kind = type(node)
    known = _BELOW.get(kind)
    if known is not None:
        return known(node)
    fields = _HEAD_FIELDS.get(kind)
    if fields is None:
        fields = tuple(name for name in _fields_of(kind) if name not in _BLOCK_FIELDS)
        _HEAD_FIELDS[kind] = fields
    return _nodes_in(node, fields)


def _nodes_in(node: ast.AST, fields: tuple[str, ...]) -> list[ast.AST]:
    found: list[ast.AST] = []
    for name in fields:
        value = getattr(node, name, None)
        if type(value) is list:
            found.extend(item for item in value if item is not None)
        elif value is not None:
            found.append(value)
    return found


_BELOW: Final[dict[type[ast.AST], Callable[[Any], list[ast.AST]]]] = {
    ast.Name: lambda _: [],
    ast.Constant: lambda _: [],
    ast.Attribute: lambda node: [node.value],
    ast.Call: lambda node: [node.func, *node.args, *node.keywords],
    ast.keyword: lambda node: [node.value],
    ast.Subscript: lambda node: [node.value, node.slice],
    ast.BinOp: lambda node: [node.left, node.right],
    ast.UnaryOp: lambda node: [node.operand],
    ast.BoolOp: lambda node: [*node.values],
    ast.Compare: lambda node: [node.left, *node.comparators],
    ast.Tuple: lambda node: [*node.elts],
    ast.List: lambda node: [*node.elts],
    ast.Expr: lambda node: [node.value],
    ast.Assign: lambda node: [*node.targets, node.value],
    ast.AugAssign: lambda node: [node.target, node.value],
}
"""What lies below the commonest nodes, none of which has a block."""


_OWN_BLOCKS: Final = ("body", "orelse", "finalbody")
_PARTS_WITH_BLOCKS: Final = ("handlers", "cases")
_BLOCK_FIELDS: Final = frozenset({*_OWN_BLOCKS, *_PARTS_WITH_BLOCKS})
"""What a statement has besides its own line."""
_WITHOUT_BLOCKS: Final = frozenset(
    {ast.Expr, ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Return, ast.Raise, ast.Assert}
)


def blocks_of(node: ast.stmt) -> Iterator[Sequence[ast.stmt]]:
    """Yield the blocks of a compound statement, each with a statement at least."""
    if type(node) in _WITHOUT_BLOCKS:
        return
    for name in _OWN_BLOCKS:
        block = getattr(node, name, None)
        if block:
            yield block
    for name in _PARTS_WITH_BLOCKS:
        for part in getattr(node, name, ()):
            yield part.body


def walk_python(node: ast.AST) -> Iterator[ast.AST]:
    """Yield ``node`` and everything below it, as ``child_nodes`` does."""
    waiting = [node]
    while waiting:
        current = waiting.pop()
        yield current
        waiting.extend(child_nodes(current))


def parts_of_target(target: ast.expr) -> Iterator[ast.expr]:
    """Yield what an assignment to ``target`` binds or writes to, one by one."""
    kind = type(target)
    if kind is ast.Tuple or kind is ast.List:
        for element in target.elts:  # type: ignore[attr-defined]
            yield from parts_of_target(element)
    elif kind is ast.Starred:
        yield from parts_of_target(target.value)  # type: ignore[attr-defined]
    else:
        yield target
