"""Read a Jupyter notebook as one Python program whose cells keep their own lines."""

from __future__ import annotations
import __future__

import ast
import json
import linecache
import re
import warnings
from bisect import bisect_right
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from gradcheck_suite.errors import UsageError
from gradcheck_suite.reporting import notebooks

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType

    from gradcheck_suite.findings import Finding, Location

__all__ = ["Notebook", "read_notebook"]

_FORMAT: Final = 4
"""The ``nbformat`` that has its cells at the top, that of IPython 3 and later; older ones have them
in worksheets, and nbconvert converts them."""

# A command of IPython's, alone or assigned: %matplotlib inline, files = !ls, ?torch.
_COMMAND: Final = re.compile(
    r"(\s*)([^\s%!?#'\"][^%!?#'\"]*=\s*)?([%!]{1,2}|\?{1,2})\s*(\w*)\s*(.*)"
)
_QUESTION: Final = re.compile(r"(\s*)[\w.*]+\?{1,2}\s*$")
# These time a statement, or keep what it prints: the statement is the program's.
_RUN_A_STATEMENT: Final = frozenset({"time", "timeit", "capture", "prun"})
_FUTURE: Final = sum(
    getattr(__future__, name).compiler_flag for name in __future__.all_feature_names
)
_TOLD: Final = 5
"""Commands of a notebook that are named as not run; of more, their number is. Chosen, for
length."""


@dataclass(frozen=True, slots=True)
class _Cell:
    """A code cell: its number among all cells, from 1, and its text as Python.

    ``file`` is the name that its code is compiled under; ``left_out`` says what Python can't run.
    """

    number: int
    file: str
    text: str
    left_out: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Notebook:
    """The code cells of a notebook, in their order.

    To whoever asks for the source of ``file``, the cells are one module; a place in that is then
    moved to its cell by ``placed``. What runs, and what a traceback shows, are the cells.
    """

    file: str
    cells: tuple[_Cell, ...]

    def compiled(self) -> Iterator[CodeType]:
        """Yield the code of each cell.

        Raises:
            SyntaxError: with the cell's name and line.
        """
        flags = 0
        for cell in self.cells:
            code = compile(cell.text, cell.file, "exec", flags, dont_inherit=True)
            # As in IPython, a ``from __future__`` import holds from here on.
            flags |= code.co_flags & _FUTURE
            yield code

    def show_source(self) -> None:
        """Let tracebacks and reports show the lines of the cells."""
        _keep_source(self.file, "".join(f"{cell.text}\n" for cell in self.cells))
        for cell in self.cells:
            _keep_source(cell.file, cell.text)

    def left_out(self) -> str | None:
        """Say what of the notebook is not run, or return None if all is."""
        told = [line for cell in self.cells for line in cell.left_out]
        if not told:
            return None
        more = f"; and {len(told) - _TOLD} more" if len(told) > _TOLD else ""
        return f"not run, as only IPython can: {'; '.join(told[:_TOLD])}{more}"

    def placed(self, finding: Finding) -> Finding:
        """Return the finding with its places in cells."""
        return replace(
            finding,
            location=None if finding.location is None else self._in_cell(finding.location),
            related=tuple(
                replace(each, location=self._in_cell(each.location)) for each in finding.related
            ),
        )

    def _in_cell(self, place: Location) -> Location:
        for cell in self.cells:
            if place.path == cell.file:
                return replace(place, path=self.file, cell=cell.number)
        if place.path != self.file or place.cell is not None or not self.cells:
            return place
        starts = list(accumulate((_height(cell) for cell in self.cells[:-1]), initial=0))
        index = bisect_right(starts, place.line - 1) - 1
        end = None if place.end_line is None else place.end_line - starts[index]
        line = place.line - starts[index]
        return replace(place, cell=self.cells[index].number, line=line, end_line=end)


def read_notebook(data: bytes, target: str, file: str) -> Notebook:
    """Return the program in a notebook.

    Args:
        data: what the notebook's file holds.
        target: how the user calls it.
        file: its path.

    Raises:
        UsageError: this is no notebook of Python's, or one of a format that is not read.
    """
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"audit: {target} is not a notebook: expected JSON, got {_first_line(error)}"
        ) from None
    if not isinstance(document, dict):
        raise UsageError(f"audit: {target} is not a notebook: expected a JSON object with cells")
    version = document.get("nbformat")
    if version != _FORMAT and (isinstance(version, int) or "worksheets" in document):
        raise UsageError(
            f"audit: {target} is a notebook of format {version}, expected {_FORMAT}; convert it: "
            f"jupyter nbconvert --to notebook --nbformat {_FORMAT} {target}"
        )
    try:
        read = notebooks.read_notebook(data.decode("utf-8-sig"))
    except ValueError as error:
        raise UsageError(f"audit: {target} is not a notebook: {_first_line(error)}") from None
    if not read.is_python:
        raise UsageError(
            f"audit: {target} is a notebook of {read.language}, expected one of Python"
        )
    cells = (
        _Cell(cell.number, f"{file}:cell {cell.number}", *_as_python(cell.text, cell.number))
        for cell in read.cells
    )
    return Notebook(file, tuple(cells))


def _as_python(text: str, number: int) -> tuple[str, tuple[str, ...]]:
    """Return a cell as Python, line by line, and what of it only IPython can run.

    Where Python can't read a line is asked of Python: in a bracket or a string, a ``%`` that
    begins a line is no command.
    """
    lines = text.split("\n")
    head = next((line for line in lines if line.strip()), "")
    if head.startswith("%%"):
        name = head[2:].split(None, 1)[0] if head[2:].strip() else ""
        if name not in _RUN_A_STATEMENT:
            commented = "\n".join(f"# {line}" if line else line for line in lines)
            return commented, (f"cell {number} (%%{name})",)
        lines[lines.index(head)] = f"# {head}"
    left_out: list[str] = []
    while (at := _unreadable_line(lines)) is not None:
        command = _command(lines[at])
        if command is None:
            break
        lines[at], name = command
        if name:
            left_out.append(f"cell {number}, line {at + 1} ({name})")
        while lines[at].endswith("\\") and at + 1 < len(lines):
            at += 1
            lines[at] = f"# {lines[at]}"
    return "\n".join(lines), tuple(left_out)


def _unreadable_line(lines: list[str]) -> int | None:
    try:
        with warnings.catch_warnings():
            # The compilation gives them.
            warnings.simplefilter("ignore")
            ast.parse("\n".join(lines))
    except SyntaxError as error:
        at = error.lineno
        return at - 1 if at is not None and 1 <= at <= len(lines) else None
    except (ValueError, RecursionError, MemoryError):
        return None
    return None


def _command(line: str) -> tuple[str, str] | None:
    """Return a line of IPython's as Python, and its name unless all of it runs; None for others."""
    asked = _QUESTION.fullmatch(line)
    if asked is not None:
        return f"{asked[1]}pass  # {line.strip()}", line.strip()
    command = _COMMAND.fullmatch(line)
    if command is None:
        return None
    indent, target, sign, name, rest = command.groups("")
    statement = re.sub(r"^(-\w+\s*\d*\s+)+", "", rest)
    if sign == "%" and name in _RUN_A_STATEMENT and _unreadable_line([statement]) is None:
        return f"{indent}{target}{statement or 'pass'}", ""
    instead = f"{target}None" if target else "pass"
    return f"{indent}{instead}  # {line.strip()}", f"{sign}{name}"


def _height(cell: _Cell) -> int:
    return cell.text.count("\n") + 1


def _keep_source(file: str, text: str) -> None:
    # Without a time of change, linecache does not look for a file of that name.
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
