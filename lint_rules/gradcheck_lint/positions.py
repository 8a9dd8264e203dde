"""Find the lines and columns of a few nodes, without resolving those of all of them."""

from __future__ import annotations

import re
from bisect import bisect_right
from contextlib import contextmanager
from itertools import accumulate
from typing import TYPE_CHECKING

import libcst as cst

# Not among libcst's public names, yet what its own PositionProvider derives from.
from libcst._nodes.internal import CodegenState

from gradcheck_suite.findings import Location

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_LINE_END = re.compile(r"\r\n?|\n")
_Span = tuple[int, int]


class Positions:
    """The places of some nodes of a module, and of its comments.

    libcst's PositionProvider measures every token as it is written. Here tokens are counted while
    the module is written once, and the places of the wanted few come from the joined text.
    """

    def __init__(self, module: cst.Module, nodes: Iterable[cst.CSTNode]) -> None:
        state = _MarkingState(module, {id(node) for node in nodes})
        module._codegen(state)  # noqa: SLF001 - what `module.code` does, with our own state
        text = "".join(state.tokens)
        self._offsets = [0, *accumulate(map(len, state.tokens))]
        self._line_starts = [0, *(match.end() for match in _LINE_END.finditer(text))]
        self._spans = state.spans
        self._statements = state.statements
        self._comments = state.comments

    @property
    def comments(self) -> list[tuple[int, int, cst.Comment]]:
        """Every comment of the module with its line and column."""
        return [(*self._place(token), comment) for token, comment in self._comments]

    def location(self, node: cst.CSTNode, path: str, function: str | None) -> Location:
        """Return where a node is; its end is exclusive."""
        start, end = self._spans[id(node)]
        line, column = self._place(start)
        end_line, end_column = self._place(end)
        return Location(path, line, column, end_line, end_column, function)

    def statement_lines(self, node: cst.CSTNode) -> frozenset[int]:
        """Return the first line of a node, and the first and last line of its statement."""
        own = self._place(self._spans[id(node)][0])[0]
        span = self._statements.get(id(node))
        if span is None:
            return frozenset({own})
        return frozenset({own, self._place(span[0])[0], self._place(span[1])[0]})

    def _place(self, token: int) -> tuple[int, int]:
        """Return the line and column, from 1, at which a token begins."""
        offset = self._offsets[min(token, len(self._offsets) - 1)]
        line = bisect_right(self._line_starts, offset)
        return line, offset - self._line_starts[line - 1] + 1


class _MarkingState(CodegenState):
    """Write a module's code and remember at which tokens the wanted nodes begin and end."""

    def __init__(self, module: cst.Module, wanted: set[int]) -> None:
        super().__init__(module.default_indent, module.default_newline)
        self.wanted = wanted
        self.spans: dict[int, _Span] = {}
        self.statements: dict[int, _Span] = {}
        self.comments: list[tuple[int, cst.Comment]] = []
        self._open: list[int] = []
        self._statement_start = 0
        self._in_statement: list[int] = []

    def before_codegen(self, node: cst.CSTNode) -> None:
        if isinstance(node, cst.BaseSmallStatement):
            self._statement_start = len(self.tokens)
            self._in_statement = []
        elif isinstance(node, cst.Comment):
            self.comments.append((len(self.tokens), node))
        if id(node) in self.wanted:
            self._open.append(len(self.tokens))
            self._in_statement.append(id(node))

    def after_codegen(self, node: cst.CSTNode) -> None:
        if id(node) in self.wanted:
            start = self._open.pop() if self._open else len(self.tokens)
            # What is inside parentheses has been recorded already, more narrowly.
            self.spans.setdefault(id(node), (start, len(self.tokens)))
        if isinstance(node, cst.BaseSmallStatement):
            for known in self._in_statement:
                self.statements[known] = (self._statement_start, len(self.tokens))
            self._in_statement = []

    @contextmanager
    def record_syntactic_position(
        self,
        node: cst.CSTNode,
        *,
        start_node: cst.CSTNode | None = None,
        end_node: cst.CSTNode | None = None,
    ) -> Iterator[None]:
        if id(node) not in self.wanted:
            yield
            return
        limits = [limit for limit in (start_node, end_node) if limit is not None]
        added = [id(limit) for limit in limits if id(limit) not in self.wanted]
        self.wanted.update(added)
        start = len(self.tokens)
        yield
        end = len(self.tokens)
        if start_node is not None:
            start = self.spans.get(id(start_node), (start, end))[0]
        if end_node is not None:
            end = self.spans.get(id(end_node), (start, end))[1]
        self.spans[id(node)] = (start, end)
