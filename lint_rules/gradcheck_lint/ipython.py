"""Tell the lines of a notebook cell that only IPython understands from lines of Python."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["Line", "leading_indent", "lines_of"]

_MAGIC = re.compile(r"^(\s*)(?:[%!?]|[\w.]+\?{1,2}\s*$)")
_ASSIGNED = re.compile(r"^(\s*[\w., ]+=\s*)[%!](?!=)")
_TRANSPARENT: Final = frozenset({"%%time", "%%timeit", "%%capture", "%%prun"})
_MARK = re.compile(
    r"""(?P<quote>\"{3}|'{3}) | "(?:\\.|[^"\\])*" | '(?:\\.|[^'\\])*' | \#.*
    | (?P<open>[\[({]) | (?P<close>[\])}]) | (?P<on>\\$)""",
    re.VERBOSE,
)
_END = {quote: re.compile(rf"(?:\\.|[^\\])*?{quote}", re.DOTALL) for quote in ('"""', "'''")}


class Line(NamedTuple):
    """A line of a cell.

    Attributes:
        text: the line.
        python: what stands before a command of IPython's, and is Python: white space, or the left
            side of an assignment; None where the whole line is Python.
        is_assigned: whether the command's result is assigned.
    """

    text: str
    python: str | None = None
    is_assigned: bool = False


def leading_indent(lines: Sequence[str]) -> str:
    """Return the white space before the first line, which IPython takes away from all of them.

    Where a line lacks it, so that it could not be put back, it is left to the parser to complain.
    """
    written = [line for line in lines if line.strip()]
    first = written[0] if written else ""
    indent = first[: len(first) - len(first.lstrip())]
    return indent if all(line.startswith(indent) for line in written) else ""


def lines_of(lines: Sequence[str]) -> Iterator[Line]:
    """Yield the lines of a cell; a command begins a statement, and may go on behind a backslash.

    What stands in a bracket or in a string that an earlier line has opened is no command: there
    ``%`` is an operator.
    """
    if _is_all_ipython(lines) or _is_automagic(lines):
        yield from (Line(line, "" if line else None) for line in lines)
        return
    statement = _Statement()
    continues: str | None = None
    for line in lines:
        if continues is not None:
            yield Line(line, continues)
        elif statement.is_open:
            statement.read(line)
            yield Line(line)
            continue
        elif magic := _MAGIC.match(line):
            continues = magic[1]
            yield Line(line, continues)
        elif assigned := _ASSIGNED.match(line):
            continues = line[: len(line) - len(line.lstrip())]
            yield Line(line, assigned[1], is_assigned=True)
        else:
            statement.read(line)
            yield Line(line)
            continue
        if not line.endswith("\\"):
            continues = None


def _is_all_ipython(lines: Sequence[str]) -> bool:
    head = next((line.split(None, 1)[0] for line in lines if line.strip()), "")
    return head.startswith("%%") and head not in _TRANSPARENT


def _is_automagic(lines: Sequence[str]) -> bool:
    """Return whether a cell is one line that IPython takes for a command without ``%``."""
    written = [line for line in lines if line.strip()]
    return len(written) == 1 and _AUTOMAGIC.match(written[0]) is not None


_AUTOMAGIC = re.compile(r"(?:pip|conda|mamba|cd|ls|mkdir|load_ext|matplotlib)\s+[\w\-./~]")


class _Statement:
    """Follows a statement over its lines."""

    def __init__(self) -> None:
        self._depth = 0
        self._quote: str | None = None
        self._goes_on = False

    @property
    def is_open(self) -> bool:
        """Whether the next line belongs to it."""
        return self._depth > 0 or self._quote is not None or self._goes_on

    def read(self, line: str) -> None:
        """Take in the next line."""
        self._goes_on = False
        at = 0
        while True:
            if self._quote is not None:
                end = _END[self._quote].match(line, at)
                if end is None:
                    return
                self._quote, at = None, end.end()
            mark = _MARK.search(line, at)
            if mark is None:
                return
            at = mark.end()
            if mark["quote"]:
                self._quote = mark["quote"]
            elif mark["open"]:
                self._depth += 1
            elif mark["close"]:
                self._depth = max(0, self._depth - 1)
            elif mark["on"] is not None:
                self._goes_on = True
