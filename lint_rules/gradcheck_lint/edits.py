"""Say what a fix changes: nodes of the parsed module, never text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import libcst as cst


@dataclass(frozen=True, slots=True)
class Replacement:
    """Put ``new`` where ``node`` is.

    ``new`` is a node, or its source: an expression for an expression, statements for a statement.
    Parentheses around the old expression are kept, and added where the new one needs them.
    """

    node: cst.CSTNode
    new: cst.CSTNode | str


@dataclass(frozen=True, slots=True)
class Removal:
    """Take a statement, an argument, an element, a decorator or a ``with`` item away.

    A block that loses its last statement gets ``pass``.
    """

    node: cst.CSTNode


@dataclass(frozen=True, slots=True)
class Insertion:
    """Put statements (as source) before or after the statement that ``anchor`` is part of."""

    anchor: cst.CSTNode
    code: str
    where: Literal["before", "after"] = "before"


@dataclass(frozen=True, slots=True)
class NewImport:
    """Import ``name`` from ``module`` at the top of the file, unless it is there already."""

    module: str
    name: str


Edit: TypeAlias = "Replacement | Removal | Insertion | NewImport"


def node_of(edit: Edit) -> cst.CSTNode | None:
    """Return the node that an edit is at, None for a new import."""
    if isinstance(edit, NewImport):
        return None
    return edit.anchor if isinstance(edit, Insertion) else edit.node


@dataclass(frozen=True, slots=True)
class Fix:
    """A change of the parsed module that removes a mistake.

    ``safe`` means that the program behaves as before, apart from the mistake: ``--fix`` applies
    it. Others need ``--unsafe-fixes``. A fix that would lose a comment is never safe. ``message``
    is an imperative for a menu: "Call unscale_() before clipping".
    """

    edits: tuple[Edit, ...]
    message: str
    safe: bool = False
