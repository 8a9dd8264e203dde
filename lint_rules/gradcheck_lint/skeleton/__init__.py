"""Build the syntax tree that rules read from CPython's own, which takes a tenth of the time.

libcst's parser makes an object of every blank and comma, and that is most of the time of a cold
run. Rules look at the nodes that mean something, so those alone are built here, with libcst's own
types, from the tree of ``ast``. Where a rule finds something in such a tree, the file is parsed by
libcst after all and looked at again: findings, places and fixes always come from the whole tree.

What differs from libcst's tree, and no rule may depend on: strings and numbers are spelt as
``repr`` does, adjacent strings are one, statements beside one another have lines of their own,
every block is an indented one, and the type parameters of functions and classes are left out.
"""

from __future__ import annotations

import ast
import re
import warnings
from typing import TYPE_CHECKING

from gradcheck_lint.skeleton._nodes import UnsupportedSyntaxError
from gradcheck_lint.skeleton._statements import Converter

if TYPE_CHECKING:
    import libcst as cst

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
        self._source = source
        self._lines: list[bytes] | None = None
        converter = Converter(self._split() if self._has_plain_lines() else None)
        self.tree = converter.module(self.python)
        self.top = converter.top_level(self.python)
        self._origins = converter.origins

    def text(self, node: cst.CSTNode) -> str:
        """Return the source of an expression on one line, without parentheses of its own.

        Raises:
            UnsupportedSyntaxError: it can't be told from the tree alone.
        """
        origin = self._origins.get(id(node))
        if origin is None or isinstance(origin, (ast.Tuple, ast.GeneratorExp)):
            raise UnsupportedSyntaxError(type(node).__name__)
        if not self._has_plain_lines():
            raise UnsupportedSyntaxError("lines")
        first, last = origin.lineno - 1, (origin.end_lineno or origin.lineno) - 1
        lines = self._split()[first : last + 1]
        lines[-1] = lines[-1][: origin.end_col_offset]
        lines[0] = lines[0][origin.col_offset :]
        return " ".join(b"".join(lines).decode().split())

    def _split(self) -> list[bytes]:
        if self._lines is None:
            self._lines = self._source.removeprefix(b"\xef\xbb\xbf").splitlines(keepends=True)
        return self._lines

    def _has_plain_lines(self) -> bool:
        """Tell whether lines and columns are those that ``ast`` counts, which is in UTF-8."""
        head = b"".join(self._source.split(b"\n", 2)[:2])
        declared = re.search(rb"coding[=:]\s*([-\w.]*)", head)
        if declared is not None and declared[1].lower() not in {b"utf-8", b"utf8"}:
            return False
        return self._source.count(b"\r") == self._source.count(b"\r\n")
