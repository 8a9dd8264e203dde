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
    severity: Severity = Severity.ERROR,
) -> Finding:
    """Return the finding for a file that can't be read or parsed.

    Args:
        path: the file.
        reason: why not.
        line: where, from 1.
        column: where in the line, from 1.
        undone: what was not done with the file.
        subject: what was not, where it is a part of the file.
        severity: an error where something is wrong with the file, a warning where it may be right
            and is merely too large.
    """
    return Finding(
        code=UNREADABLE_CODE,
        rule=UNREADABLE_SLUG,
        severity=severity,
        message=f"{subject} was not {undone}: {reason}",
        detector="lint",
        location=Location(path, line or 1, column),
        hint="correct the file, or leave it out with `exclude`",
    )
