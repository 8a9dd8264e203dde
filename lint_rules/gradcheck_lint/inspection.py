"""Hold what the engine found in one source, with the fixes and the tree they belong to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import libcst as cst

from gradcheck_lint.edits import Fix
from gradcheck_lint.positions import Positions
from gradcheck_suite.findings import Finding


@dataclass(frozen=True, slots=True)
class Inspected:
    """One finding with its fix. ``safe`` is what ``--fix`` goes by."""

    finding: Finding
    fix: Fix | None = None
    safe: bool = False


@dataclass(frozen=True, slots=True)
class Inspection:
    """What is wrong in one source, and the tree that the fixes belong to, if it was parsed."""

    items: tuple[Inspected, ...] = ()
    tree: cst.Module | None = None
    positions: Positions | None = None
    sources: Mapping[str, str] = field(default_factory=dict)
    """The other files that were read for it, with their digests."""

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Return the findings alone."""
        return tuple(item.finding for item in self.items)
