"""Define what a rule is: its catalogue entry and its check."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import libcst as cst

from gradcheck_lint.edits import Edit, Fix, Insertion, NewImport, Removal, Replacement
from gradcheck_suite.findings import JSON
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from gradcheck_lint.model.module import FunctionModel
    from gradcheck_suite.catalogue import Entry

__all__ = [
    "Edit",
    "Fix",
    "Insertion",
    "NewImport",
    "Removal",
    "Replacement",
    "Rule",
    "Violation",
]


@dataclass(frozen=True, slots=True)
class Violation:
    """A mistake at a node; the engine turns nodes into lines and columns.

    ``related`` are other nodes that explain it, each with what it did. ``fix`` is the change of
    the parsed module that removes the mistake, where one is known.
    """

    node: cst.CSTNode
    message: str
    severity: Severity = Severity.ERROR
    hint: str | None = None
    related: tuple[tuple[cst.CSTNode, str], ...] = ()
    evidence: Mapping[str, JSON] = field(default_factory=dict)
    fix: Fix | None = None


class Rule(ABC):
    """A mistake that can be seen in source text.

    A rule asks the function model; it doesn't walk syntax itself unless its question is about
    syntax. Its examples are files, in ``tests/lint/fixtures/<slug>``.
    """

    entry: ClassVar[Entry]

    @abstractmethod
    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield every mistake of this kind in one function."""
