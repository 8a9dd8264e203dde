"""Find the lines and columns of a few nodes, without resolving those of all of them."""

from __future__ import annotations

import re
from bisect import bisect_right
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import accumulate
from typing import TYPE_CHECKING

import libcst as cst

from gradcheck_suite.findings import Location

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager

try:
    # Not among libcst's public names, yet what its own PositionProvider derives from.
    from libcst._nodes.internal import CodegenState
except ImportError:  # pragma: no cover - no libcst so far; the test makes it so
    CodegenState = None  # type: ignore[assignment, misc]

_LINE_END = re.compile(r"\r\n?|\n")
_NOTHING = nullcontext()
_Span = tuple[int, int]
_Place = tuple[int, int]


@dataclass(slots=True)
class _Measured:
    """Lines and columns, from 1: of nodes by identity, of their statements, of comments."""

    places: dict[int, tuple[_Place, _Place]] = field(default_factory=dict)
    statements: dict[int, tuple[int, int]] = field(default_factory=dict)
    comments: list[tuple[int, int, cst.Comment]] = field(default_factory=list)


class Positions:
    """The places of some nodes of a module, and of its comments."""

    def __init__(self, module: cst.Module, nodes: Iterable[cst.CSTNode]) -> None:
        wanted = list(nodes)
        try:
            self._measured = _measure_quickly(module, wanted)
        except (AttributeError, TypeError, KeyError):
            # libcst has changed inside: its public way takes fifty times as long.
            self._measured = measure_publicly(module, wanted)

    @property
    def comments(self) -> list[tuple[int, int, cst.Comment]]:
        """Every comment of the module with its line and column."""
        return self._measured.comments

    def location(self, node: cst.CSTNode, path: str, function: str | None) -> Location:
        """Return where a node is; its end is exclusive."""
        (line, column), (end_line, end_column) = self._place(node)
        return Location(path, line, column, end_line, end_column, function)

    def has(self, node: cst.CSTNode) -> bool:
        """Return whether a node is one of this module, and was asked for."""
        return id(node) in self._measured.places

    def moved(self, node: cst.CSTNode, path: str, lines: Sequence[int]) -> Location:
        """Return where a node is in the file that has the module's lines by these numbers."""
        here = self.location(node, path, None)
        line, end = (
            lines[min(number, len(lines)) - 1] for number in (here.line, here.end_line or here.line)
        )
        return replace(here, line=line, end_line=end)

    def statement_lines(self, node: cst.CSTNode) -> frozenset[int]:
        """Return the first line of a node, and the first and last line of its statement."""
        own = self._place(node)[0][0]
        return frozenset({own, *self._measured.statements.get(id(node), ())})

    def _place(self, node: cst.CSTNode) -> tuple[_Place, _Place]:
        try:
            return self._measured.places[id(node)]
        except KeyError:
            raise LookupError("a rule has reported a node that is not of this file") from None


def measure_publicly(module: cst.Module, wanted: Iterable[cst.CSTNode]) -> _Measured:
    """Measure with libcst's PositionProvider, which measures every token as it is written."""
    from libcst.metadata import MetadataWrapper, PositionProvider  # noqa: PLC0415 - hardly ever

    ranges = MetadataWrapper(module, unsafe_skip_copy=True).resolve(PositionProvider)
    measured = _Measured()
    ids = {id(node) for node in wanted}
    waiting: list[tuple[cst.CSTNode, cst.CSTNode | None]] = [(module, None)]
    while waiting:
        node, statement = waiting.pop()
        if isinstance(node, cst.BaseSmallStatement):
            statement = node
        range_ = ranges.get(node)
        if range_ is not None:
            start = (range_.start.line, range_.start.column + 1)
            if isinstance(node, cst.Comment):
                measured.comments.append((*start, node))
            if id(node) in ids:
                measured.places[id(node)] = start, (range_.end.line, range_.end.column + 1)
                if statement is not None:
                    around = ranges[statement]
                    measured.statements[id(node)] = around.start.line, around.end.line
        waiting.extend((child, statement) for child in reversed(node.children))
    measured.comments.sort(key=lambda item: item[:2])
    return measured


def _measure_quickly(module: cst.Module, wanted: Iterable[cst.CSTNode]) -> _Measured:
    """Count tokens while the module is written once; the wanted few are found in the text."""
    state = _MarkingState(module, {id(node) for node in wanted})
    module._codegen(state)  # noqa: SLF001 - what `module.code` does, with our own state
    text = "".join(state.tokens)
    offsets = [0, *accumulate(map(len, state.tokens))]
    line_starts = [0, *(match.end() for match in _LINE_END.finditer(text))]

    def place(token: int) -> _Place:
        offset = offsets[min(token, len(offsets) - 1)]
        line = bisect_right(line_starts, offset)
        return line, offset - line_starts[line - 1] + 1

    return _Measured(
        {node: (place(start), place(end)) for node, (start, end) in state.spans.items()},
        {node: (place(start)[0], place(end)[0]) for node, (start, end) in state.statements.items()},
        [(*place(token), comment) for token, comment in state.comments],
    )


@cache
def _is_small_statement(kind: type[cst.CSTNode]) -> bool:
    # A look at the type takes a tenth of an isinstance() with an abstract class.
    return issubclass(kind, cst.BaseSmallStatement)


class _MarkingState(CodegenState if CodegenState is not None else object):  # type: ignore[misc]
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
        if _is_small_statement(type(node)):
            self._statement_start = len(self.tokens)
            self._in_statement = []
        elif type(node) is cst.Comment:
            self.comments.append((len(self.tokens), node))
        if id(node) in self.wanted:
            self._open.append(len(self.tokens))
            self._in_statement.append(id(node))

    def after_codegen(self, node: cst.CSTNode) -> None:
        if id(node) in self.wanted:
            start = self._open.pop() if self._open else len(self.tokens)
            # What is inside parentheses has been recorded already, more narrowly.
            self.spans.setdefault(id(node), (start, len(self.tokens)))
        if _is_small_statement(type(node)):
            for known in self._in_statement:
                self.statements[known] = (self._statement_start, len(self.tokens))
            self._in_statement = []

    def record_syntactic_position(
        self,
        node: cst.CSTNode,
        *,
        start_node: cst.CSTNode | None = None,
        end_node: cst.CSTNode | None = None,
    ) -> AbstractContextManager[None]:
        if id(node) not in self.wanted:
            return _NOTHING
        return self._record(node, start_node, end_node)

    @contextmanager
    def _record(
        self, node: cst.CSTNode, start_node: cst.CSTNode | None, end_node: cst.CSTNode | None
    ) -> Iterator[None]:
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
