"""What a session has found, told by its codes and by what is written on the lines that it names."""

from __future__ import annotations

from pathlib import Path

from gradcheck_suite.findings import Severity


def the(code, session):
    """Return the one finding of this code."""
    (finding,) = (each for each in session.findings if each.code == code)
    return finding


def comment_at(location):
    """Return the comment on the line that a finding names."""
    line = Path(location.path).read_text(encoding="utf-8").splitlines()[location.line - 1]
    return line.partition("  # ")[2]


def accusations(session):
    """Return the codes of what is said to be wrong."""
    return [each.code for each in session.findings if each.severity > Severity.NOTE]
