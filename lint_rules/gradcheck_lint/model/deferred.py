"""Leave the body of a function unbuilt until somebody asks what is in it.

Of most functions a rule wants to know no more than which words they have.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Any

import libcst as cst

from gradcheck_lint.model.python_tree import walk_python

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_WORD = re.compile(r"[^\W\d]\w*")
_DEFINING = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)


class Deferred:
    """What is known of statements that have not been built.

    ``words`` are all words of their text, those in comments and strings among them; ``bindings``
    are the targets that may be attributes, each with the expression that it is bound to.
    """

    __slots__ = (
        "_attributes",
        "_build",
        "_read",
        "_words",
        "bindings",
        "defines",
        "loops",
        "nodes",
        "returns",
        "writes",
    )

    def __init__(
        self,
        nodes: Sequence[ast.stmt],
        build: Callable[[Sequence[ast.stmt]], list[Any]],
        read: Callable[[], str],
    ) -> None:
        self.nodes = nodes
        self._build = build
        self._read = read
        self._words: frozenset[str] | None = None
        self._attributes: frozenset[str] | None = None
        self.defines = self.loops = self.returns = self.writes = False
        self.bindings: list[tuple[ast.expr, ast.expr]] = []
        self._look(nodes)

    @property
    def words(self) -> frozenset[str]:
        """Return every word of the text."""
        if self._words is None:
            self._words = frozenset(_WORD.findall(self.text))
        return self._words

    @property
    def bound_attributes(self) -> frozenset[str]:
        """Return the names of the attributes that are assigned to, and maybe of others."""
        if self._attributes is None:
            self._attributes = frozenset(
                node.attr
                for target, _ in self.bindings
                for node in walk_python(target)
                if type(node) is ast.Attribute
            )
        return self._attributes

    @property
    def text(self) -> str:
        """Return the text."""
        return self._read()

    def build(self) -> list[Any]:
        """Return the statements."""
        return self._build(self.nodes)

    def _look(self, nodes: Sequence[ast.stmt]) -> None:
        """Note what kinds of statements there are."""
        for node in nodes:
            kind = type(node)
            if kind is ast.Assign:
                for target in node.targets:  # type: ignore[attr-defined]
                    self._look_at_target(target, node.value)  # type: ignore[attr-defined]
            elif kind is ast.AugAssign:
                self.writes = True
                self._look_at_target(node.target, node.value)  # type: ignore[attr-defined]
            elif kind is ast.AnnAssign:
                self._look_at_target(node.target, node.value or node.annotation)  # type: ignore[attr-defined]
            elif kind is ast.Return:
                self.returns = True
            elif kind in _DEFINING:
                self.defines = True
            elif kind not in _SIMPLE:
                self._look_inside(node, kind)

    def _look_inside(self, node: ast.stmt, kind: type[ast.stmt]) -> None:
        if kind in _LOOPS:
            self.loops = True
            if kind is not ast.While:
                self._look_at_target(node.target, node.iter)  # type: ignore[attr-defined]
        elif kind is ast.With or kind is ast.AsyncWith:
            for item in node.items:  # type: ignore[attr-defined]
                if item.optional_vars is not None:
                    self._look_at_target(item.optional_vars, item.context_expr)
        elif kind is not ast.If:
            for part in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
                self._look(part.body)
            self._look(getattr(node, "finalbody", ()))
        self._look(getattr(node, "body", ()))
        self._look(getattr(node, "orelse", ()))

    def _look_at_target(self, target: ast.expr, source: ast.expr) -> None:
        kind = type(target)
        if kind is ast.Subscript:
            self.writes = True
        elif kind is not ast.Name:
            self.bindings.append((target, source))


_LOOPS = frozenset({ast.For, ast.AsyncFor, ast.While})
_SIMPLE = frozenset(
    {
        ast.Expr,
        ast.Delete,
        ast.Raise,
        ast.Assert,
        ast.Global,
        ast.Nonlocal,
        ast.Pass,
        ast.Break,
        ast.Continue,
    }
)


class DeferredBlock(cst.IndentedBlock):
    """A block whose statements are built when they are asked for.

    ``header``, which rules never look at, holds what is known until then.
    """

    __slots__ = ()  # type: ignore[misc]

    def __getattr__(self, name: str) -> Any:
        """Build the statements; asked only while a field is missing."""
        if name != "body":
            raise AttributeError(name)
        body = deferred_of(self).build()
        _set_body(self, body)
        return body


_set_body: Any = cst.IndentedBlock.__dict__["body"].__set__
_set_header: Any = cst.IndentedBlock.__dict__["header"].__set__


def defer(known: Deferred) -> DeferredBlock:
    """Return a block of what is known."""
    block: DeferredBlock = object.__new__(DeferredBlock)
    _set_header(block, known)
    return block


def deferred_of(block: DeferredBlock) -> Deferred:
    """Return what is known of a block."""
    known: Deferred = block.header  # type: ignore[assignment]
    return known
