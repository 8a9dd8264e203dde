"""How certain a finding is, from worst to mildest."""

from __future__ import annotations

from enum import Enum


class Severity(Enum):
    """Grade a finding by proof, not by taste.

    * ``ERROR``: it was observed to be wrong, or is certain on every path.
    * ``WARNING``: very likely; the finding shows the evidence.
    * ``NOTE``: true and unusual, or costly, or legacy; no exit status by itself.

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

    def lowered(self, steps: int = 1) -> Severity:
        """Return the severity so many steps milder; there is nothing milder than a note.

        >>> Severity.ERROR.lowered(), Severity.NOTE.lowered()
        (<Severity.WARNING: 'warning'>, <Severity.NOTE: 'note'>)
        """
        return _BY_WEIGHT[max(self.weight - steps, 1)]

    def __lt__(self, other: Severity) -> bool:
        return self.weight < other.weight

    def __le__(self, other: Severity) -> bool:
        return self.weight <= other.weight

    def __gt__(self, other: Severity) -> bool:
        return self.weight > other.weight

    def __ge__(self, other: Severity) -> bool:
        return self.weight >= other.weight


_WEIGHTS = {"error": 3, "warning": 2, "note": 1}
_BY_WEIGHT = {each.weight: each for each in Severity}
