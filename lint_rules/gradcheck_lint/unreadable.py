"""Report files that can't be read, so that one of them never hides the others."""

from __future__ import annotations

from typing import Final

from gradcheck_suite.findings import Finding, Location
from gradcheck_suite.severity import Severity

UNREADABLE_CODE: Final = "GCS000"
UNREADABLE_SLUG: Final = "unreadable-file"


def unreadable(
    path: str,
    reason: str,
    *,
    line: int | None = None,
    column: int | None = None,
    undone: str = "linted",
    subject: str = "this file",
) -> Finding:
    """Return the finding for a file that can't be read or parsed; ``undone`` is what it was not."""
    return Finding(
        code=UNREADABLE_CODE,
        rule=UNREADABLE_SLUG,
        severity=Severity.ERROR,
        message=f"{subject} was not {undone}: {reason}",
        detector="lint",
        location=Location(path, line or 1, column),
        hint="correct the file, or leave it out with `exclude`",
    )
