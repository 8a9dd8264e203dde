"""Write findings as a Code Quality report of GitLab, which marks the lines of a merge request.

The names are those of "Code Quality report format" in GitLab's documentation.
"""

from __future__ import annotations

import json
from hashlib import sha256
from typing import TYPE_CHECKING, Any, TypeAlias

from gradcheck_suite.reporting.concise import with_cell
from gradcheck_suite.reporting.fingerprints import fingerprints
from gradcheck_suite.reporting.paths import display_path
from gradcheck_suite.reporting.source import SourceLines
from gradcheck_suite.reporting.text import one_line, visible
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from gradcheck_suite.findings import Finding, Report

__all__ = ["render", "to_document"]

Document: TypeAlias = dict[str, Any]

_SEVERITIES = {Severity.ERROR: "critical", Severity.WARNING: "major", Severity.NOTE: "info"}


def render(report: Report) -> str:
    """Return the report as JSON in ASCII, indented, with one newline at its end."""
    return json.dumps(to_document(report), indent=2, allow_nan=False) + "\n"


def to_document(report: Report) -> list[Document]:
    """Return one issue for each finding, and one for each thing that was not covered.

    GitLab wants a place for each: what has none is put at the head of the work tree.
    """
    sources = SourceLines()
    issues = [
        _issue(finding, fingerprint, sources)
        for finding, fingerprint in zip(report.findings, fingerprints(report), strict=True)
    ]
    issues.extend(_not_covered(number, reason) for number, reason in enumerate(report.not_covered))
    return issues


def _issue(finding: Finding, fingerprint: str, sources: SourceLines) -> Document:
    message = with_cell(finding.message, finding.location)
    description = f"{finding.code} {one_line(message)}"
    if finding.hint:
        description += f" (help: {one_line(finding.hint)})"
    place = None if finding.location is None else sources.in_file(finding.location)
    return {
        "description": visible(description),
        "check_name": visible(finding.rule),
        "fingerprint": fingerprint,
        "severity": _SEVERITIES[finding.severity],
        "location": {
            "path": "." if place is None else visible(display_path(place.path)),
            "lines": {"begin": 1 if place is None else max(place.line, 1)},
        },
    }


def _not_covered(number: int, reason: str) -> Document:
    text = f"not covered\0{number}\0{reason}".encode("utf-8", "backslashreplace")
    return {
        "description": f"not covered: {one_line(reason)}",
        "check_name": "not-covered",
        "fingerprint": sha256(text).hexdigest()[:32],
        "severity": "info",
        "location": {"path": ".", "lines": {"begin": 1}},
    }
