"""Read the comments that silence findings.

``# noqa`` silences every finding of its line, ``# noqa: GCS301, E501`` those codes (in any case,
separated by commas or spaces; other tools' codes are left to them).
``# gradcheck: ignore[missing-zero-grad] reason`` names rules by slug or code. A comment counts on
the line that a finding names, and on the first and the last line of the statement it's in.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gradcheck_suite.findings import Finding

_NOQA = re.compile(
    r"#\s*noqa(?P<codes>\s*:\s*(?P<list>[A-Z][A-Z]*[0-9]+(?:[\s,]+[A-Z][A-Z]*[0-9]+)*))?",
    re.IGNORECASE,
)
_OWN = re.compile(r"#\s*gradcheck:\s*ignore\[(?P<list>[^\]]*)\]", re.IGNORECASE)
_SEPARATOR = re.compile(r"[\s,]+")


@dataclass(frozen=True, slots=True)
class Suppressions:
    """Which rules the comments of a file silence, by line; None stands for every rule."""

    by_line: dict[int, frozenset[str] | None]

    @classmethod
    def of(cls, comments: Iterable[tuple[int, str]]) -> Suppressions:
        """Read the comments of a file, each with its line."""
        by_line: dict[int, frozenset[str] | None] = {}
        for line, comment in comments:
            silenced = _silenced_by(comment)
            if silenced is None:
                by_line[line] = None
            elif silenced and by_line.get(line, frozenset()) is not None:
                by_line[line] = (by_line.get(line) or frozenset()) | silenced
        return cls(by_line)

    def silence(self, finding: Finding, lines: Iterable[int]) -> bool:
        """Tell whether a comment on one of ``lines`` silences ``finding``."""
        for line in lines:
            if line in self.by_line:
                silenced = self.by_line[line]
                if silenced is None or {finding.code.upper(), finding.rule.lower()} & silenced:
                    return True
        return False


def _silenced_by(comment: str) -> frozenset[str] | None:
    """Return the codes and slugs that a comment names; None if it silences everything.

    >>> sorted(_silenced_by("# noqa: gcs301,E501"))
    ['E501', 'GCS301']
    >>> _silenced_by("# noqa") is None
    True
    """
    names: set[str] = set()
    for match in _NOQA.finditer(comment):
        if match["list"] is None:
            return None
        names.update(code.upper() for code in _SEPARATOR.split(match["list"]))
    for match in _OWN.finditer(comment):
        for name in _SEPARATOR.split(match["list"].strip()):
            names.add(name.upper() if name.upper().startswith("GCS") else name.lower())
    return frozenset(names - {""})
