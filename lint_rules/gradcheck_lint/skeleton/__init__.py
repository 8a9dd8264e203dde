"""Build the syntax tree that rules read from CPython's own, which takes a tenth of the time.

libcst's parser makes an object of every blank and comma, and that is most of the time of a cold
run. Rules look at the nodes that mean something, so those alone are built here, with libcst's own
types, from the tree of ``ast``. Where a rule finds something in such a tree, and a place or a text
can't be told from it for sure, the file is parsed by libcst after all and looked at again. Fixes
always come from the whole tree.

What differs from libcst's tree, and no rule may depend on: numbers are spelt as ``repr`` does, and
so are strings where the quotes don't matter, statements beside one another have lines of their own,
every block is an indented one, and the type parameters of functions and classes are left out.
"""

from __future__ import annotations

import ast
import warnings
from typing import TYPE_CHECKING

from gradcheck_lint.edits import Edit, Removal, Replacement
from gradcheck_lint.model.earlier_use import statements_below
from gradcheck_lint.model.python_tree import walk_python
from gradcheck_lint.skeleton._nodes import UnsupportedSyntaxError, origin_of
from gradcheck_lint.skeleton._source_text import SourceText
from gradcheck_lint.skeleton._statements import Converter

if TYPE_CHECKING:
    import libcst as cst

    from gradcheck_suite.findings import Location

__all__ = ["Skeleton", "UnsupportedSyntaxError"]


class Skeleton:
    """A syntax tree without white space, and the source of its expressions."""

    def __init__(self, source: bytes) -> None:
        """Parse source.

        Raises:
            SyntaxError, ValueError, RecursionError, MemoryError: CPython refuses it.
            UnsupportedSyntaxError: it has syntax that is left to libcst.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.python = ast.parse(source)
        self._text = SourceText(source)
        self._converter = Converter(self._text)
        self.tree = self._converter.module(self.python)
        self.top = self._converter.top_level(self.python)
        self._formatted: set[int] = set()
        self._count = 0

    def text(self, node: cst.CSTNode) -> str:
        """Return the source of an expression on one line, without parentheses of its own.

        Raises:
            UnsupportedSyntaxError: it can't be told from the tree alone.
        """
        return self._text.without_parentheses(self._expression(node))

    def code(self, node: cst.CSTNode) -> str:
        """Return the source of an expression on one line, with parentheses of its own.

        Raises:
            UnsupportedSyntaxError: it can't be told from the tree alone.
        """
        return self._text.with_parentheses(self._expression(node))

    def location(self, node: cst.CSTNode, path: str, function: str | None) -> Location:
        """Return where a node is; its end is exclusive.

        Raises:
            UnsupportedSyntaxError: it can't be told from the tree alone.
        """
        return self._text.location(self._origin(node), path, function)

    def loses_comment(self, edit: Edit) -> bool:
        """Tell whether an edit drops a comment that stood inside what it changes.

        Raises:
            UnsupportedSyntaxError: it can't be told from the tree alone.
        """
        if not isinstance(edit, (Replacement, Removal)):
            return False
        if self._text.has_hash(self._expression(edit.node)):
            raise UnsupportedSyntaxError("a comment")
        return False

    @property
    def is_spelt_out(self) -> bool:
        """Tell whether each string built so far stands in the tree as in the source."""
        return self._converter.is_spelt_out

    @property
    def may_define_in_blocks(self) -> bool:
        """Tell whether functions or classes may stand in blocks of the top level."""
        if self.top is None:
            return True
        defining = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        return any(isinstance(node, defining) for node in statements_below(self.top.nodes))

    def _expression(self, node: cst.CSTNode) -> ast.expr:
        origin = self._origin(node)
        if not isinstance(origin, ast.expr):
            raise UnsupportedSyntaxError(type(node).__name__)
        return origin

    def _origin(self, node: cst.CSTNode) -> ast.expr | ast.stmt:
        origin = origin_of(node)
        if origin is None or id(origin) in self._inside_formatted():
            raise UnsupportedSyntaxError(type(node).__name__)
        return origin

    def _inside_formatted(self) -> set[int]:
        """Return what stands in f-strings, which before Python 3.12 has no true place."""
        strings = self._converter.formatted
        for string in strings[self._count :]:
            self._formatted.update(id(node) for node in walk_python(string) if node is not string)
        self._count = len(strings)
        return self._formatted
