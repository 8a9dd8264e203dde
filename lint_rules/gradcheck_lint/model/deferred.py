"""Leave the body of a function unbuilt until somebody asks what is in it.

Of most functions a rule wants to know no more than which words they have.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Any, NamedTuple

import libcst as cst

from gradcheck_lint.model.python_tree import parts_of_target, walk_python

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_WORD = re.compile(r"[^\W\d]\w*")
_DEFINING = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)


class ItemWrite(NamedTuple):
    """An assignment of ``source`` to an item, as a statement of its own.

    ``loops`` are those around it, outermost first, also the one whose ``else`` it is in.
    """

    target: ast.Subscript
    source: ast.expr
    loops: tuple[ast.stmt, ...]
    is_augmented: bool = False


class Deferred:
    """What is known of statements that have not been built.

    ``words`` are all words of their text, those in comments and strings among them; ``bindings``
    are the targets that may be attributes, each with the expression that it is bound to.
    """

    __slots__ = (
        "_attributes",
        "_build",
        "_read",
        "_text",
        "_words",
        "bindings",
        "defines",
        "items",
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
        self._text: str | None = None
        self._words: frozenset[str] | None = None
        self._attributes: frozenset[str] | None = None
        self.defines = self.loops = self.returns = self.writes = False
        self.bindings: list[tuple[ast.expr, ast.expr]] = []
        self.items: list[ItemWrite] = []
        self._look(nodes, ())

    @property
    def words(self) -> frozenset[str]:
        """Return every word of the text."""
        if self._words is None:
            self._words = _words_of(self.text)
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
        if self._text is None:
            self._text = self._read()
        return self._text

    def build(self) -> list[Any]:
        """Return the statements."""
        return self._build(self.nodes)

    def _look(self, nodes: Sequence[ast.stmt], loops: tuple[ast.stmt, ...]) -> None:
        """Note what kinds of statements there are."""
        for node in nodes:
            kind = type(node)
            if kind is ast.Assign:
                for target in node.targets:  # type: ignore[attr-defined]
                    if type(target) is not ast.Name:
                        self._look_at_target(target, node.value, loops)  # type: ignore[attr-defined]
            elif kind is ast.AugAssign:
                self.writes = True
                target = node.target  # type: ignore[attr-defined]
                self._look_at_target(target, node.value, loops, is_augmented=True)  # type: ignore[attr-defined]
            elif kind is ast.AnnAssign:
                source = node.value or node.annotation  # type: ignore[attr-defined]
                self._look_at_target(node.target, source, loops)  # type: ignore[attr-defined]
            elif kind is ast.Return:
                self.returns |= node.value is not None  # type: ignore[attr-defined]
            elif kind in _DEFINING:
                self.defines = True
            elif kind not in _SIMPLE:
                self._look_inside(node, kind, loops)

    def _look_inside(
        self, node: ast.stmt, kind: type[ast.stmt], loops: tuple[ast.stmt, ...]
    ) -> None:
        if kind in _LOOPS:
            self.loops = True
            loops = (*loops, node)
            if kind is not ast.While:
                self._look_at_target(node.target, node.iter, loops)  # type: ignore[attr-defined]
        elif kind is ast.With or kind is ast.AsyncWith:
            for item in node.items:  # type: ignore[attr-defined]
                if item.optional_vars is not None:
                    self._look_at_target(item.optional_vars, item.context_expr, loops)
        elif kind is not ast.If:
            for part in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
                self._look(part.body, loops)
            self._look(getattr(node, "finalbody", ()), loops)
        self._look(getattr(node, "body", ()), loops)
        self._look(getattr(node, "orelse", ()), loops)

    def _look_at_target(
        self,
        target: ast.expr,
        source: ast.expr,
        loops: tuple[ast.stmt, ...],
        *,
        is_augmented: bool = False,
    ) -> None:
        if isinstance(target, ast.Subscript):
            self.writes = True
            self.items.append(ItemWrite(target, source, loops, is_augmented))
        elif type(target) is not ast.Name:
            self.bindings.append((target, source))
            for part in () if type(target) is ast.Attribute else parts_of_target(target):
                if isinstance(part, ast.Subscript):
                    self.items.append(ItemWrite(part, source, loops))


def _words_of(text: str) -> frozenset[str]:
    """Return the words of a text, in a third of the time of a regular expression if it's ASCII."""
    if not text.isascii():
        return frozenset(_WORD.findall(text))
    found = set(text.encode().translate(_SPACES).decode().split())
    numbers = [word for word in found if word[0] < "A"]
    found.difference_update(numbers)
    found.update(_WORD.findall(" ".join(numbers)))
    return frozenset(found)


_SEPARATORS = bytes(code for code in range(128) if re.match(r"\W", chr(code)))
_SPACES = bytes.maketrans(_SEPARATORS, b" " * len(_SEPARATORS))
"""What turns all of ASCII but its letters, digits and underscores into spaces."""

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
