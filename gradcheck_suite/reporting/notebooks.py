"""Read Jupyter notebooks: the text of their code cells, and where it stands in the file."""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["Cell", "Notebook", "read_notebook"]

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{},:]|[^\s\[\]{},:"]+')
_LINE_END = re.compile(r"\n")
_DEPTH: Final = 3
_PYTHON: Final = frozenset({"python", "ipython", "python3"})


@dataclass(frozen=True, slots=True)
class Cell:
    """A code cell of a notebook file.

    Attributes:
        number: its number among all cells, from 1.
        text: its source, whose lines end as Python has them.
        span: the range of its ``source`` in the text of the file.
        file_lines: for each line of the source, the line of the file that it begins on.
        is_list: whether the file has its source as a list of strings.
    """

    number: int
    text: str
    span: tuple[int, int]
    file_lines: tuple[int, ...]
    is_list: bool

    @property
    def lines(self) -> list[str]:
        """Return the lines of the cell without their ends."""
        return self.text.split("\n")

    def file_line(self, line: int) -> int:
        """Return the line of the file on which a line of the cell, counted from 1, begins."""
        return self.file_lines[min(max(line, 1), len(self.file_lines)) - 1]


@dataclass(frozen=True, slots=True)
class Notebook:
    """The code cells of a notebook in their order, and the language that it names, if any."""

    cells: tuple[Cell, ...]
    language: str | None

    @property
    def is_python(self) -> bool:
        """Whether the cells are Python, as far as the notebook says."""
        return self.language is None or self.language.lower() in _PYTHON

    def cell(self, number: int) -> Cell | None:
        """Return the code cell of this number, or None."""
        return next((cell for cell in self.cells if cell.number == number), None)


def read_notebook(raw: str) -> Notebook:
    """Read the text of a notebook file.

    Raises:
        ValueError: it is no JSON, or no notebook of version 4.
    """
    try:
        document = json.loads(raw)
        _check(document)
        return Notebook(tuple(_code_cells(document, raw)), _language(document))
    except json.JSONDecodeError:
        raise
    except (TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError(str(error)) from error


def _check(document: Any) -> None:
    if not isinstance(document, dict) or not isinstance(document.get("cells"), list):
        raise ValueError("expected a list of cells in it")  # noqa: TRY004 - as below
    for number, cell in enumerate(document["cells"], start=1):
        if not isinstance(cell, dict):
            raise ValueError(f"expected an object as cell {number}")  # noqa: TRY004 - of what is read
        source = cell.get("source")
        if cell.get("cell_type") == "code" and not (
            isinstance(source, str)
            or (isinstance(source, list) and all(isinstance(line, str) for line in source))
        ):
            raise ValueError(f"expected text as the source of cell {number}")


def _language(document: Any) -> str | None:
    metadata = document.get("metadata", {})
    for key, name in (("language_info", "name"), ("kernelspec", "language")):
        about = metadata.get(key) if isinstance(metadata, dict) else None
        language = about.get(name) if isinstance(about, dict) else None
        if language is not None:
            return str(language)
    return None


def _code_cells(document: Any, raw: str) -> Iterator[Cell]:
    sources = dict(_source_spans(raw))
    line_ends = [match.end() for match in _LINE_END.finditer(raw)]
    for index, cell in enumerate(document["cells"]):
        if cell.get("cell_type") != "code" or index not in sources:
            continue
        value = cell["source"]
        parts = [value] if isinstance(value, str) else list(value)
        span, places = sources[index]
        # An empty list has no string to stand on.
        starts = [bisect_right(line_ends, place) + 1 for place in places or (span[0],)]
        file_lines = [starts[0]]
        for part, start in zip(parts, starts, strict=False):
            if file_lines[-1] is _NOT_BEGUN:
                file_lines[-1] = start
            breaks = part.replace("\r\n", "\n").count("\n")
            file_lines += [start] * breaks
            if part.endswith("\n"):
                file_lines[-1] = _NOT_BEGUN
        if file_lines[-1] is _NOT_BEGUN:
            file_lines[-1] = starts[-1]
        text = "".join(parts).replace("\r\n", "\n")
        yield Cell(index + 1, text, span, tuple(file_lines), isinstance(value, list))


_NOT_BEGUN: Final = -1
"""Stands for the line of the next string, on which the next line of the source begins."""


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


def _is_source(around: Sequence[int | str | None]) -> bool:
    """Return whether these keys lead to the source of a cell."""
    return len(around) == _DEPTH and around[0] == "cells" and around[2] == "source"


def _number(around: Sequence[int | str | None]) -> int:
    number = around[1]
    return number if isinstance(number, int) else -1
