"""How certain a finding is, from worst to mildest."""

from __future__ import annotations

from enum import Enum


class Severity(Enum):
    """Grade a finding by proof, not by taste.

    * ``ERROR``: it was observed, or is certain on every path.
    * ``WARNING``: likely; the finding shows the evidence.
    * ``NOTE``: costs speed or memory, or is legacy.

    Severities compare by weight:

    >>> Severity.ERROR > Severity.WARNING > Severity.NOTE
    True
    >>> Severity("warning")
    <Severity.WARNING: 'warning'>
    """

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"

    @property
    def weight(self) -> int:
        """Rank this severity: 3 for an error, 2 for a warning, 1 for a note."""
        return _WEIGHTS[self.value]

    def __lt__(self, other: Severity) -> bool:
        return self.weight < other.weight

    def __le__(self, other: Severity) -> bool:
        return self.weight <= other.weight

    def __gt__(self, other: Severity) -> bool:
        return self.weight > other.weight

    def __ge__(self, other: Severity) -> bool:
        return self.weight >= other.weight


_WEIGHTS = {"error": 3, "warning": 2, "note": 1}
