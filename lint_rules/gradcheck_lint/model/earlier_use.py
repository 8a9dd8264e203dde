"""Tell whether a tensor can have been used between its making and a write, by names alone.

A name that is bound to something new and not mentioned again until it is written to holds what no
operation has saved. Nothing is read for that: lines are compared.
"""

from __future__ import annotations

import ast
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from gradcheck_lint.model.knowledge import INPLACE_METHODS, MAYBE_ITSELF_METHODS, VIEW_METHODS
from gradcheck_lint.model.python_tree import blocks_of, child_nodes, head_nodes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gradcheck_lint.model.provenance import Write


@dataclass(frozen=True, slots=True)
class _Line:
    """A statement without its blocks: the names it mentions, and the one it binds if it's plain.

    ``added_to`` is the name that ``+=`` changes, which saves nothing.
    """

    names: Counter[str]
    blocks: tuple[int, ...]
    loops: tuple[int, ...]
    bound: str | None
    source: ast.expr | None
    added_to: str | None = None


class EarlierUse:
    """The mentions of names in one function."""

    def __init__(self, nodes: Sequence[ast.stmt]) -> None:
        self._lines: list[_Line] = []
        self._places: dict[int, int] = {}
        self._collect(nodes, (), ())

    def is_possible(self, write: Write) -> bool:
        """Tell whether what is written to may have been used by an operation before."""
        target = write.target
        while isinstance(target, ast.Subscript):
            target = target.value
        place = self._places.get(id(write.statement))
        if not isinstance(target, ast.Name) or place is None:
            return True
        name, own = target.id, self._lines[place]
        if own.names[name] > (2 if own.bound == name else 1):
            return True
        made: _Line | None = None
        for line in reversed(self._lines[:place]):
            if line.bound == name and own.blocks[: len(line.blocks)] == line.blocks:
                made = line
                break
            if line.names[name] > (1 if line.added_to == name else 0):
                return True
        if made is not None and (made.source is None or not _is_new(made.source)):
            return True
        around = own.loops[len(made.loops) if made is not None else 0 :]
        return bool(around) and any(
            name in line.names and around[0] in line.loops
            for line in self._lines
            if line is not own
        )

    def _collect(
        self, nodes: Sequence[ast.stmt], blocks: tuple[int, ...], loops: tuple[int, ...]
    ) -> None:
        blocks = (*blocks, id(nodes))
        for node in nodes:
            names: Counter[str] = Counter()
            inner: list[Sequence[ast.stmt]] = []
            kind = type(node)
            is_closed = kind in _DEFINITIONS
            if is_closed:
                _count(child_nodes(node), names)
            else:
                _count(head_nodes(node), names)
                inner.extend(blocks_of(node))
                for part in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
                    _count(head_nodes(part), names)
            bound, source, added_to = None, None, None
            if kind is ast.AugAssign and isinstance(node.target, ast.Name):  # type: ignore[attr-defined]
                is_sum = isinstance(node.op, (ast.Add, ast.Sub))  # type: ignore[attr-defined]
                added_to = node.target.id if is_sum else None  # type: ignore[attr-defined]
            if kind is ast.Assign:
                targets = node.targets  # type: ignore[attr-defined]
                if len(targets) == 1 and isinstance(targets[0], ast.Name):
                    bound, source = targets[0].id, node.value  # type: ignore[attr-defined]
            within = (*loops, id(node)) if kind in _LOOPS else loops
            self._places[id(node)] = len(self._lines)
            self._lines.append(_Line(names, blocks, within, bound, source, added_to))
            for block in inner:
                self._collect(block, blocks, within)


def statements_below(nodes: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield statements and those of their blocks, without what functions and classes hold."""
    for node in nodes:
        yield node
        if type(node) in _DEFINITIONS:
            continue
        for block in blocks_of(node):
            yield from statements_below(block)


def _count(nodes: list[Any], names: Counter[str]) -> None:
    """Count the names in and below these nodes, which are used up."""
    while nodes:
        current = nodes.pop()
        if type(current) is ast.Name:
            names[current.id] += 1
        else:
            nodes.extend(child_nodes(current))


def _is_new(node: ast.expr) -> bool:
    """Tell whether an expression makes a tensor of its own, and hands on none that has a name."""
    if isinstance(node, ast.Call):
        func = node.func
        if isinstance(func, ast.Attribute):
            return func.attr not in _SHARING and not func.attr.endswith("_")
        return isinstance(func, ast.Name) and func.id not in _SHARING
    return isinstance(node, (ast.BinOp, ast.UnaryOp, ast.Compare, ast.Constant))


_DEFINITIONS: Final = frozenset({ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef})
_LOOPS: Final = frozenset({ast.For, ast.AsyncFor, ast.While})
_SHARING: Final = (
    VIEW_METHODS
    | MAYBE_ITSELF_METHODS
    | INPLACE_METHODS
    | {"detach", "chunk", "split", "unbind", "items", "values", "get", "pop", "scale", "data"}
    | {"list", "tuple", "set", "dict", "sorted", "reversed", "iter", "next", "enumerate", "zip"}
    | {"tqdm", "trange", "copy", "deepcopy", "chain", "getattr", "map", "filter", "max", "min"}
)
