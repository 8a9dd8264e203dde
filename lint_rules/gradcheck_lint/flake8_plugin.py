"""Offer the rules to flake8, under the codes ``GCS``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradcheck_lint.engine import lint_source
from gradcheck_lint.project.layout import root_of
from gradcheck_lint.unreadable import UNREADABLE_CODE
from gradcheck_suite._version import __version__

if TYPE_CHECKING:
    import ast
    from collections.abc import Iterator, Sequence


class Flake8Checker:
    """A plugin as flake8 wants one: made for each file, run once.

    flake8 selects rules and heeds ``# noqa`` itself, and reports files that it can't parse.
    """

    name = "gradcheck-lint"
    version = __version__

    def __init__(self, tree: ast.AST, filename: str, lines: Sequence[str]) -> None:
        del tree  # flake8 hands a tree to whoever checks whole files
        self._filename = filename
        self._lines = lines

    def run(self) -> Iterator[tuple[int, int, str, type[Flake8Checker]]]:
        """Yield the line, the column from 0, and the message of each finding."""
        text = "".join(self._lines)
        if "torch" not in text:
            return
        from gradcheck_lint.parsing import encode  # noqa: PLC0415 - only for torch files

        for finding in lint_source(encode(text), self._filename, root=root_of(self._filename)):
            place = finding.location
            if finding.code != UNREADABLE_CODE and place is not None:
                column = (place.column or 1) - 1
                yield place.line, column, f"{finding.code} {finding.message}", type(self)
