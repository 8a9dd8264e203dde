"""Lint and fix the Python cells of Jupyter notebooks.

The code cells are read as one module, in their order. A finding is placed on its line of the
notebook file, which every tool can show, and names the cell and the line in it.
"""

from __future__ import annotations

import ast
import json
import re
import warnings
from bisect import bisect_right
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from gradcheck_lint.ipython import lines_of
from gradcheck_lint.unreadable import unreadable
from gradcheck_suite.findings import Finding, Location

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

# A statement, and no comment: a comment goes when the statement below it does.
_MARKER: Final = "'gradcheck-lint: end of a cell'"
_MAGIC: Final = "pass  # gradcheck-lint: line of IPython "
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{},:]|[^\s\[\]{},:"]+')
_LINE_END = re.compile(r"\n")


@dataclass(frozen=True, slots=True)
class _Cell:
    """A code cell: its number among all cells (from 1), its text, and where it is in the file.

    ``span`` is the range of its ``source`` in the file; ``places`` the offset of each string in it.
    """

    number: int
    text: str
    span: tuple[int, int]
    places: tuple[int, ...]
    is_list: bool

    @property
    def lines(self) -> list[str]:
        """Return the lines of the cell without their ends."""
        return self.text.split("\n")


@dataclass(frozen=True, slots=True)
class FixedNotebook:
    """A notebook after its fixes: what was fixed, and what is left to find in it."""

    source: bytes
    fixed: tuple[Finding, ...] = ()
    left: tuple[Finding, ...] = ()


class _Notebook:
    """The code of a notebook as one module, and the way back."""

    def __init__(self, raw: str) -> None:
        document = json.loads(raw)
        self.raw = raw
        self.cells = list(_code_cells(document, raw)) if _is_python(document) else []
        self.magics: list[str] = []
        self.broken: list[_Cell] = []
        texts = [self._plain(cell) for cell in self.cells]
        if not _parses("\n".join(texts)):
            for index, (cell, text) in enumerate(zip(self.cells, texts, strict=True)):
                if not _parses(text):
                    self.broken.append(cell)
                    texts[index] = "\n" * text.count("\n")
        self.code = "".join(f"{text}\n{_MARKER}\n" for text in texts)
        self._starts: list[int] = []
        line = 1
        for text in texts:
            self._starts.append(line)
            line += text.count("\n") + 2
        self._line_ends = [match.end() for match in _LINE_END.finditer(raw)]

    def _plain(self, cell: _Cell) -> str:
        """Return the cell without what only IPython understands, line by line."""
        plain = []
        for line in lines_of(cell.lines):
            if line.python is None:
                plain.append(line.text)
            elif line.is_assigned:
                name = self._hidden(line.text, "").removeprefix("pass  ")
                plain.append(f"{line.python}None  {name}")
            else:
                plain.append(self._hidden(line.text, line.python))
        return "\n".join(plain)

    def _hidden(self, line: str, indent: str) -> str:
        self.magics.append(line)
        return f"{indent}{_MAGIC}{len(self.magics) - 1}"

    def line_of(self, offset: int) -> int:
        """Return the line of the file that an offset is on."""
        return bisect_right(self._line_ends, offset) + 1

    def place(self, location: Location) -> tuple[Location, int, int]:
        """Return where a place of the module is in the file, in which cell, and on which line."""
        index = max(bisect_right(self._starts, location.line) - 1, 0)
        cell = self.cells[index]
        line = location.line - self._starts[index] + 1
        offset = cell.places[min(line, len(cell.places)) - 1] if cell.places else cell.span[0]
        return (
            Location(location.path, self.line_of(offset), function=location.function),
            cell.number,
            line,
        )

    def with_code(self, code: str) -> str:
        """Return the notebook file with the cells of a module that fixes have changed."""
        texts = code.split(f"{_MARKER}\n")[:-1]
        if len(texts) != len(self.cells):
            return self.raw
        raw = self.raw
        for cell, text in reversed(list(zip(self.cells, texts, strict=True))):
            lines = [self._restored(line) for line in text.removesuffix("\n").split("\n")]
            new = "\n".join(lines)
            if cell not in self.broken and new != cell.text:
                start, end = cell.span
                raw = raw[:start] + self._dumped(new, cell) + raw[end:]
        return raw

    def _restored(self, line: str) -> str:
        _, found, number = line.partition(_MAGIC.removeprefix("pass  "))
        return self.magics[int(number)] if found else line

    def _dumped(self, text: str, cell: _Cell) -> str:
        def dump(value: str) -> str:
            return json.dumps(value, ensure_ascii=self.raw.isascii())

        if not cell.is_list:
            return dump(text)
        items = [dump(line) for line in text.splitlines(keepends=True)]
        old = self.raw[slice(*cell.span)]
        opening = re.match(r"\[(\s*)", old)
        closing = re.search(r"(\s*)\]$", old)
        gap = opening[1] if opening else ""
        return f"[{gap}{(',' + (gap or ' ')).join(items)}{closing[1] if closing else ''}]"


def lint_notebook(
    source: bytes, path: str, *, codes: Collection[str] | None = None
) -> tuple[Finding, ...]:
    """Return what is wrong in the code cells of a notebook, in their order.

    What is no notebook is a finding, and so is a cell that is no Python; the others are linted.
    """
    from gradcheck_lint.engine import lint_source  # noqa: PLC0415 - tests replace it

    notebook = _read(source, path)
    if isinstance(notebook, Finding):
        return (notebook,)
    findings = lint_source(notebook.code.encode(), path, codes=codes)
    return _placed(notebook, findings, path)


def fix_notebook(
    source: bytes, path: str, *, codes: Collection[str] | None = None, unsafe: bool = False
) -> FixedNotebook:
    """Apply fixes to the code cells of a notebook; all else in the file stays as it is."""
    from gradcheck_lint.fixes import fix_source  # noqa: PLC0415 - needs libcst

    notebook = _read(source, path)
    if isinstance(notebook, Finding):
        return FixedNotebook(source, left=(notebook,))
    result = fix_source(notebook.code.encode(), path, codes=codes, unsafe=unsafe)
    new = notebook.with_code(result.source.decode()).encode()
    if new == source:
        return FixedNotebook(source, left=_placed(notebook, result.left, path))
    return FixedNotebook(new, result.fixed, lint_notebook(new, path, codes=codes))


def _read(source: bytes, path: str) -> _Notebook | Finding:
    try:
        return _Notebook(source.decode())
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        line = error.lineno if isinstance(error, json.JSONDecodeError) else None
        reason = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
        return unreadable(path, f"it is not a notebook of version 4: {reason}", line=line)


def _placed(notebook: _Notebook, findings: Sequence[Finding], path: str) -> tuple[Finding, ...]:
    placed = [_moved(notebook, finding) for finding in findings]
    for cell in notebook.broken:
        start = notebook.line_of(cell.places[0] if cell.places else cell.span[0])
        reason = f"cell {cell.number} is not valid Python; the other cells were"
        placed.append(unreadable(path, reason, line=start))
    return tuple(placed)


def _moved(notebook: _Notebook, finding: Finding) -> Finding:
    if finding.location is None or not notebook.cells:
        return finding
    location, cell, line = notebook.place(finding.location)
    related = []
    for other in finding.related:
        there, other_cell, other_line = notebook.place(other.location)
        message = f"{other.message} (cell {other_cell}, line {other_line})"
        related.append(replace(other, location=there, message=message))
    return replace(
        finding,
        message=f"cell {cell}, line {line}: {finding.message}",
        location=location,
        related=tuple(related),
        evidence={**finding.evidence, "cell": cell, "cell_line": line},
    )


def _is_python(document: Any) -> bool:
    metadata = document.get("metadata", {})
    for key, name in (("language_info", "name"), ("kernelspec", "language")):
        language = metadata.get(key, {}).get(name)
        if language is not None:
            return bool(str(language).lower() in {"python", "ipython", "python3"})
    return True


def _parses(code: str) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def _code_cells(document: Any, raw: str) -> Iterator[_Cell]:
    sources = dict(_source_spans(raw))
    for index, cell in enumerate(document["cells"]):
        if cell.get("cell_type") != "code" or index not in sources:
            continue
        value = cell["source"]
        text = value if isinstance(value, str) else "".join(value)
        span, places = sources[index]
        yield _Cell(index + 1, text.replace("\r\n", "\n"), span, places, isinstance(value, list))


def _source_spans(raw: str) -> Iterator[tuple[int, tuple[tuple[int, int], tuple[int, ...]]]]:
    """Yield for each cell the range of its ``source`` in the file, and its strings' offsets."""
    around: list[int | str | None] = []  # where in each open list (a number) and object (a key)
    start = 0
    places: list[int] = []
    for token in _TOKEN.finditer(raw):
        text = token.group()
        inside_source = len(around) == _DEPTH + 1 and _is_source(around[:-1])
        if text in "[{":
            if _is_source(around):
                start, places = token.start(), []
            around.append(0 if text == "[" else None)
        elif text in "]}":
            around.pop()
            if _is_source(around):
                yield _number(around), ((start, token.end()), tuple(places))
        elif text == ",":
            place = around.pop()
            around.append(place + 1 if isinstance(place, int) else None)
        elif text == ":":
            continue
        elif around and around[-1] is None:
            around[-1] = str(json.loads(text))
        elif inside_source:
            places.append(token.start())
        elif _is_source(around):
            yield _number(around), (token.span(), (token.start(),))


_DEPTH: Final = 3


def _is_source(around: Sequence[int | str | None]) -> bool:
    """Tell whether these keys lead to the source of a cell."""
    return len(around) == _DEPTH and around[0] == "cells" and around[2] == "source"


def _number(around: Sequence[int | str | None]) -> int:
    number = around[1]
    return number if isinstance(number, int) else -1
