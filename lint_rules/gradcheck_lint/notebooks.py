"""Lint and fix the Python cells of Jupyter notebooks.

The code cells are read as one module, in their order: what one defines, the next ones know. Lines
and columns of a finding are those in its cell.
"""

from __future__ import annotations

import ast
import json
import re
import warnings
from bisect import bisect_right
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from gradcheck_lint.ipython import leading_indent, lines_of
from gradcheck_lint.unreadable import unreadable
from gradcheck_suite.findings import Finding, Location
from gradcheck_suite.reporting.notebooks import read_notebook

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from gradcheck_suite.reporting.notebooks import Cell

# A statement, and no comment: a comment goes when the statement below it does.
_MARKER: Final = "'gradcheck-lint: end of a cell'"
_MAGIC: Final = "pass  # gradcheck-lint: line of IPython "


@dataclass(frozen=True, slots=True)
class FixedNotebook:
    """A notebook after its fixes: what was fixed, and what is left to find in it."""

    source: bytes
    fixed: tuple[Finding, ...] = ()
    left: tuple[Finding, ...] = ()


class CellModule:
    """The code of some cells as one module, and the way back.

    Attributes:
        code: the source of the module, without the cells that are no Python.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = tuple(texts)
        self._magics: list[str] = []
        self._indents = [leading_indent(text.split("\n")) for text in texts]
        self._plain = [
            self._without_magics(text, indent)
            for text, indent in zip(texts, self._indents, strict=True)
        ]
        broken: dict[int, int] = {}
        if _error_line("\n".join(self._plain)) is not None:
            for index, text in enumerate(self._plain):
                line = _error_line(text)
                if line is not None:
                    broken[index] = min(line, text.count("\n") + 1)
                    self._plain[index] = "\n" * text.count("\n")
        self._broken = broken
        self.code = "".join(f"{text}\n{_MARKER}\n" for text in self._plain)
        self._starts: list[int] = []
        line = 1
        for text in self._plain:
            self._starts.append(line)
            line += text.count("\n") + 2

    def place(self, location: Location) -> tuple[int, Location]:
        """Return in which of the cells a place of the module is, and where in its text."""
        index = max(bisect_right(self._starts, location.line) - 1, 0)
        lines = self._texts[index].split("\n")
        indent = self._indents[index]
        start = self._starts[index]

        def line_of(line: int) -> int:
            return min(max(line - start + 1, 1), len(lines))

        def column_of(column: int | None, line: int) -> int | None:
            if column is None or not lines[line - 1].startswith(indent):
                return column
            return column + len(indent)

        line = line_of(location.line)
        end = None if location.end_line is None else line_of(location.end_line)
        return index, replace(
            location,
            line=line,
            column=column_of(location.column, line),
            end_line=end,
            end_column=column_of(location.end_column, end or line),
        )

    def refused(self, path: str) -> Iterator[tuple[int, Finding]]:
        """Yield a finding for each cell that is no Python, with the cell's place."""
        for index, line in self._broken.items():
            reason = "it is not valid Python; the other cells were"
            yield index, unreadable(path, reason, line=line, subject="this cell")

    def changed(self, code: str) -> dict[int, str]:
        """Return the new texts of the cells that differ in ``code``, an edited module."""
        texts = code.split(f"{_MARKER}\n")[:-1]
        if len(texts) != len(self._texts):
            return {}
        changes = {}
        for index, text in enumerate(texts):
            new = text.removesuffix("\n")
            if new != self._plain[index] and index not in self._broken:
                changes[index] = self._restored(new, self._indents[index])
        return changes

    def _without_magics(self, text: str, indent: str) -> str:
        """Return the cell without what only IPython understands, line by line."""
        plain = []
        for line in lines_of([line.removeprefix(indent) for line in text.split("\n")]):
            if line.python is None:
                plain.append(line.text)
            elif line.is_assigned:
                name = self._hidden(line.text, "").removeprefix("pass  ")
                plain.append(f"{line.python}None  {name}")
            else:
                plain.append(self._hidden(line.text, line.python))
        return "\n".join(plain)

    def _hidden(self, line: str, indent: str) -> str:
        self._magics.append(line)
        return f"{indent}{_MAGIC}{len(self._magics) - 1}"

    def _restored(self, text: str, indent: str) -> str:
        lines = []
        for line in text.split("\n"):
            _, found, number = line.partition(_MAGIC.removeprefix("pass  "))
            whole = self._magics[int(number)] if found else line
            lines.append(indent + whole if whole.strip() else whole)
        return "\n".join(lines)


def lint_notebook(
    source: bytes, path: str, *, codes: Collection[str] | None = None
) -> tuple[Finding, ...]:
    """Return what is wrong in the code cells of a notebook, in their order.

    What is no notebook is a finding, and so is a cell that is no Python; the others are linted.
    """
    from gradcheck_lint.engine import lint_source  # noqa: PLC0415 - tests replace it

    cells = _read(source, path)
    if isinstance(cells, Finding):
        return (cells,)
    module = CellModule([cell.text for cell in cells])
    findings = lint_source(module.code.encode(), path, codes=codes)
    return _placed(module, cells, findings, path)


def fix_notebook(
    source: bytes, path: str, *, codes: Collection[str] | None = None, unsafe: bool = False
) -> FixedNotebook:
    """Apply fixes to the code cells of a notebook; all else in the file stays as it is."""
    from gradcheck_lint.fixes import fix_source  # noqa: PLC0415 - needs libcst

    cells = _read(source, path)
    if isinstance(cells, Finding):
        return FixedNotebook(source, left=(cells,))
    module = CellModule([cell.text for cell in cells])
    result = fix_source(module.code.encode(), path, codes=codes, unsafe=unsafe)
    changes = module.changed(result.source.decode())
    if not changes:
        return FixedNotebook(source, left=_placed(module, cells, result.left, path))
    raw = source.decode()
    for index in sorted(changes, reverse=True):
        start, end = cells[index].span
        raw = raw[:start] + _dumped(changes[index], cells[index], raw) + raw[end:]
    new = raw.encode()
    return FixedNotebook(new, result.fixed, lint_notebook(new, path, codes=codes))


def _read(source: bytes, path: str) -> Sequence[Cell] | Finding:
    try:
        notebook = read_notebook(source.decode())
    except ValueError as error:
        line = error.lineno if isinstance(error, json.JSONDecodeError) else None
        reason = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
        return unreadable(path, f"it is not a notebook of version 4: {reason}", line=line)
    return notebook.cells if notebook.is_python else ()


def _placed(
    module: CellModule, cells: Sequence[Cell], findings: Sequence[Finding], path: str
) -> tuple[Finding, ...]:
    placed = [_moved(module, cells, finding) for finding in findings]
    for index, finding in module.refused(path):
        assert finding.location is not None
        place = replace(finding.location, cell=cells[index].number)
        placed.append(replace(finding, location=place))
    return tuple(placed)


def _moved(module: CellModule, cells: Sequence[Cell], finding: Finding) -> Finding:
    def moved(location: Location) -> Location:
        index, place = module.place(location)
        return replace(place, cell=cells[index].number)

    if finding.location is None or not cells:
        return finding
    related = tuple(replace(other, location=moved(other.location)) for other in finding.related)
    return replace(finding, location=moved(finding.location), related=related)


def _dumped(text: str, cell: Cell, raw: str) -> str:
    """Return the text of a cell as JSON, laid out as its source in the file was."""

    def dump(value: str) -> str:
        return json.dumps(value, ensure_ascii=raw.isascii())

    if not cell.is_list:
        return dump(text)
    items = [dump(line) for line in text.splitlines(keepends=True)]
    old = raw[slice(*cell.span)]
    opening = re.match(r"\[(\s*)", old)
    closing = re.search(r"(\s*)\]$", old)
    gap = opening[1] if opening else ""
    return f"[{gap}{(',' + (gap or ' ')).join(items)}{closing[1] if closing else ''}]"


def _error_line(code: str) -> int | None:
    """Return the line on which code stops being Python, or None if it is."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(code)
    except SyntaxError as error:
        return error.lineno or 1
    except (ValueError, RecursionError, MemoryError):
        return 1
    return None
