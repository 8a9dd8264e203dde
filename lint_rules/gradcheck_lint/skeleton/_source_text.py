"""Read in the source what nodes of ``ast`` stand for: their text, with parentheses, and place."""

from __future__ import annotations

import ast
import keyword
import re
from typing import TYPE_CHECKING, Final, NamedTuple

from gradcheck_lint.skeleton._nodes import UnsupportedSyntaxError
from gradcheck_suite.findings import Location

if TYPE_CHECKING:
    from collections.abc import Sequence

_BLANKS: Final = b" \t\f\r\n"
_LAST_WORD: Final = re.compile(rb"[\w\x80-\xff]+$")
_BEFORE_GROUP: Final = frozenset(keyword.kwlist) - {"None", "True", "False"}
"""Words that parentheses of an expression's own may follow."""

_PAIR: Final = 2
_OPENING: Final = re.compile(r"[A-Za-z]*(\"\"\"|'''|\"|')")
_BETWEEN_STRINGS: Final = re.compile(r"(?:\s|\\|#[^\n]*)*")
_ESCAPE_OR_QUOTES: Final = {
    quote: re.compile(rf"(?s:\\.)|{quote}") for quote in ("'", '"', "'''", '"""')
}


class _Span(NamedTuple):
    """Where something begins and ends: lines from 0, columns in bytes."""

    line: int
    column: int
    end_line: int
    end_column: int


class SourceText:
    """The lines of a source, as far as they are those that ``ast`` counts."""

    __slots__ = ("lines",)

    def __init__(self, source: bytes) -> None:
        """Split the source; ``lines`` is None where places can't be told from those of ``ast``."""
        self.lines: list[bytes] | None = None
        if _has_plain_lines(source):
            self.lines = source.removeprefix(b"\xef\xbb\xbf").splitlines(keepends=True)

    def without_parentheses(self, node: ast.expr) -> str:
        """Return the source of an expression on one line, without parentheses of its own.

        Raises:
            UnsupportedSyntaxError: it can't be told.
        """
        if isinstance(node, (ast.Tuple, ast.GeneratorExp)):
            raise UnsupportedSyntaxError(type(node).__name__)
        return _on_one_line(self._between(_span_of(node)))

    def with_parentheses(self, node: ast.expr) -> str:
        """Return the source of an expression on one line, with all parentheses of its own.

        Raises:
            UnsupportedSyntaxError: it can't be told.
        """
        return _on_one_line(self._between(self._widened(node)))

    def has_hash(self, node: ast.expr) -> bool:
        """Tell whether an expression, or what is in parentheses of its own, has a hash sign.

        Raises:
            UnsupportedSyntaxError: it can't be told.
        """
        return b"#" in self._between(self._widened(node))

    def location(self, node: ast.expr | ast.stmt, path: str, function: str | None) -> Location:
        """Return where a node is, without parentheses of its own; its end is exclusive.

        Raises:
            UnsupportedSyntaxError: it can't be told.
        """
        lines = self._plain_lines()
        if isinstance(node, (ast.Tuple, ast.GeneratorExp)):
            raise UnsupportedSyntaxError(type(node).__name__)
        line, column, end_line, end_column = _span_of(node)
        if isinstance(node, ast.stmt) and b";" in lines[end_line][end_column - 1 :]:
            # One may belong to the last statement of a block, or be the end of the block.
            raise UnsupportedSyntaxError("a semicolon")
        first = len(lines[line][:column].decode()) + 1
        last = len(lines[end_line][:end_column].decode()) + 1
        return Location(path, line + 1, first, end_line + 1, last, function)

    def strings(self, node: ast.expr) -> list[str]:
        """Return the strings beside one another that make one expression, as they are spelt.

        Raises:
            UnsupportedSyntaxError: it can't be told.
        """
        source = self._between(_span_of(node))
        text = source.decode()
        if source.count(b'"') + source.count(b"'") == _PAIR:
            return [text]
        found, start = [], 0
        while start < len(text):
            end = _end_of_string(text, start)
            found.append(text[start:end])
            start = _BETWEEN_STRINGS.match(text, end).end()  # type: ignore[union-attr]
        return found

    def is_bare(self, node: ast.Tuple) -> bool:
        """Tell whether a tuple stands there without parentheses of its own.

        Raises:
            UnsupportedSyntaxError: it can't be told.
        """
        if not node.elts:
            return False
        whole, first, last = _span_of(node), _span_of(node.elts[0]), _span_of(node.elts[-1])
        if first[:2] == whole[:2] or last[2:] == whole[2:]:
            return True
        # Parentheses of the first element close before the first comma.
        opened = self._between(_Span(*whole[:2], *first[:2]))
        closed, _, _ = self._between(_Span(*first[2:], *whole[2:])).partition(b",")
        if b"#" in opened or b"#" in closed:
            raise UnsupportedSyntaxError("a tuple with comments")
        return opened.count(b"(") == closed.count(b")")

    def _plain_lines(self) -> Sequence[bytes]:
        if self.lines is None:
            raise UnsupportedSyntaxError("lines")
        return self.lines

    def _between(self, span: _Span) -> bytes:
        lines = [*self._plain_lines()[span.line : span.end_line + 1]]
        lines[-1] = lines[-1][: span.end_column]
        lines[0] = lines[0][span.column :]
        return b"".join(lines)

    def _widened(self, node: ast.expr) -> _Span:
        """Return where an expression begins and ends, with all parentheses of its own."""
        if isinstance(node, ast.GeneratorExp):  # those of a call may be its own as well
            raise UnsupportedSyntaxError("a generator")
        span = _span_of(node)
        while True:
            closing = self._closing_after(span.end_line, span.end_column)
            opening = None if closing is None else self._opening_before(span.line, span.column)
            if closing is None or opening is None:
                return span
            span = _Span(*opening, *closing)

    def _closing_after(self, line: int, column: int) -> tuple[int, int] | None:
        """Return where the parenthesis ends that stands right behind a place, if one does."""
        lines = self._plain_lines()
        rest = lines[line][column:]
        while not (text := rest.lstrip(_BLANKS)) or text.startswith((b"#", b"\\")):
            line, column = line + 1, 0
            if line == len(lines):
                return None
            rest = lines[line]
        if not text.startswith(b")"):
            return None
        return line, column + len(rest) - len(text) + 1

    def _opening_before(self, line: int, column: int) -> tuple[int, int] | None:
        """Return where the grouping parenthesis is that stands right before a place, if one does.

        Those of calls, classes and functions group nothing.
        """
        lines = self._plain_lines()
        text = lines[line][:column].rstrip(_BLANKS)
        while not text:
            line -= 1
            if line < 0 or b"#" in lines[line]:
                raise UnsupportedSyntaxError("what stands before parentheses")
            text = lines[line].rstrip(_BLANKS + b"\\")
        if not text.endswith(b"("):
            return None
        before = text[:-1].rstrip(_BLANKS)
        return (line, len(text) - 1) if _groups(before) else None


def _groups(before: bytes) -> bool:
    """Tell whether a parenthesis behind a text on the same line begins no call."""
    word = _LAST_WORD.search(before)
    if word is None:
        if not before:
            raise UnsupportedSyntaxError("parentheses at the begin of a line")
        return before[-1:] not in b")]}'\"."
    if word[0] == b"with" or word[0][:1].isdigit():
        raise UnsupportedSyntaxError("parentheses behind with or a number")
    return word[0].decode() in _BEFORE_GROUP


def _end_of_string(text: str, start: int) -> int:
    """Return where the string ends whose prefix or quote stands at ``start``."""
    opening = _OPENING.match(text, start)
    if opening is None:
        raise UnsupportedSyntaxError("a string")
    quote = opening[1]
    for found in _ESCAPE_OR_QUOTES[quote].finditer(text, opening.end()):
        if found[0] == quote:
            return found.end()
    raise UnsupportedSyntaxError("a string without an end")


def _span_of(node: ast.expr | ast.stmt) -> _Span:
    end_line, end_column = node.end_lineno, node.end_col_offset
    if end_line is None or end_column is None:
        raise UnsupportedSyntaxError("no end")
    return _Span(node.lineno - 1, node.col_offset, end_line - 1, end_column)


def _on_one_line(text: bytes) -> str:
    return " ".join(text.decode().split())


def _has_plain_lines(source: bytes) -> bool:
    """Tell whether lines and columns are those that ``ast`` counts, which is in UTF-8."""
    head = b"\n".join(source.split(b"\n", 2)[:2])
    declared = re.search(rb"coding[=:]\s*([-\w.]*)", head)
    if declared is not None and declared[1].lower() not in {b"utf-8", b"utf8"}:
        return False
    return source.count(b"\r") == source.count(b"\r\n")
