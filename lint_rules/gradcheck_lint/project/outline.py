"""List what a file defines and imports at its top level, without a tree of all the rest.

Other files of a project are many, and of each only a few definitions matter. Python's own parser
says where they are in a tenth of the time that libcst takes for the whole file.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from gradcheck_lint.parsing import MAX_BYTES, decode

if TYPE_CHECKING:
    from collections.abc import Iterator

_LINE: Final = re.compile(r"[^\r\n]*(?:\r\n?|\n|\Z)")
_WORD: Final = re.compile(r"[^\W\d]\w*")
STAR: Final = "*"


@dataclass(frozen=True, slots=True)
class Import:
    """``from module import name as local``; ``name`` is empty for ``import module as local``."""

    local: str
    module: str
    level: int = 0
    name: str = ""

    @property
    def statement(self) -> str:
        """Return the import as a line of its own."""
        module = "." * self.level + self.module
        if self.name:
            return f"from {module} import {self.name} as {self.local}"
        return f"import {module}" + ("" if self.local == self.module else f" as {self.local}")


@dataclass(frozen=True, slots=True, eq=False)
class Definition:
    """A statement of the top level that binds names; ``first`` and ``last`` are its lines."""

    names: tuple[str, ...]
    first: int
    last: int
    text: str
    is_class: bool = False

    @property
    def words(self) -> frozenset[str]:
        """Return every word of the statement."""
        return words_of(self.text)


@dataclass(frozen=True, slots=True, eq=False)
class Outline:
    """What a file defines and imports."""

    lines: Sequence[str]
    statements: list[Definition] = field(default_factory=list)
    """All of the top level but imports, also what binds no name."""
    definitions: dict[str, list[Definition]] = field(default_factory=dict)
    imports: list[Import] = field(default_factory=list)


def outline_of(source: bytes) -> Outline | None:
    """Return the outline of a source, None if Python can't parse it."""
    if len(source) > MAX_BYTES:
        return None
    text = decode(source)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    outline = Outline([line for line in _LINE.findall(text) if line])
    for statement in tree.body:
        names = tuple(dict.fromkeys(_bound_by(statement)))
        outline.imports.extend(_imports_of(statement))
        if isinstance(statement, (ast.Import, ast.ImportFrom)):
            continue
        made = _definition(statement, names, outline.lines)
        outline.statements.append(made)
        for name in () if _is_for_scripts(statement) else names:
            outline.definitions.setdefault(name, []).append(made)
    return outline


def _definition(statement: ast.stmt, names: tuple[str, ...], lines: Sequence[str]) -> Definition:
    decorators = getattr(statement, "decorator_list", ())
    first = min((statement.lineno, *(each.lineno for each in decorators)))
    last = statement.end_lineno or first
    text = "".join(lines[first - 1 : last])
    return Definition(names, first, last, text, isinstance(statement, ast.ClassDef))


def _is_for_scripts(statement: ast.stmt) -> bool:
    """Return whether a statement is ``if __name__ == "__main__"``, which no import runs."""
    return isinstance(statement, ast.If) and any(
        isinstance(node, ast.Name) and node.id == "__name__" for node in ast.walk(statement.test)
    )


@lru_cache(maxsize=4096)
def words_of(text: str) -> frozenset[str]:
    """Return every word of a text."""
    return frozenset(_WORD.findall(text))


def _bound_by(statement: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement binds, also those in its branches."""
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        yield statement.name
    elif isinstance(statement, ast.Assign):
        for target in statement.targets:
            yield from _names_in(target)
    elif isinstance(statement, (ast.AnnAssign, ast.AugAssign)):
        yield from _names_in(statement.target)
    else:
        for below in _statements_in(statement):
            yield from _bound_by(below)


def _names_in(target: ast.expr) -> Iterator[str]:
    if isinstance(target, ast.Name):
        yield target.id
    elif isinstance(target, (ast.Tuple, ast.List)):
        for element in target.elts:
            yield from _names_in(element)


def _imports_of(statement: ast.stmt) -> Iterator[Import]:
    """Yield the imports of a statement, also those in functions."""
    if isinstance(statement, ast.Import):
        for alias in statement.names:
            yield Import(alias.asname or alias.name, alias.name)
    elif isinstance(statement, ast.ImportFrom):
        for alias in statement.names:
            local = alias.asname or alias.name
            yield Import(local, statement.module or "", statement.level, alias.name)
    else:
        for below in _statements_in(statement):
            yield from _imports_of(below)


def _statements_in(statement: ast.stmt) -> Iterator[ast.stmt]:
    for block in ("body", "orelse", "finalbody", "handlers", "cases"):
        for below in getattr(statement, block, ()):
            if isinstance(below, ast.stmt):
                yield below
            else:
                yield from below.body
