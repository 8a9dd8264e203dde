"""Write a report as JSON for programs; ``schemas/report-1.schema.json`` describes it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from gradcheck_suite._version import __version__
from gradcheck_suite.reporting.fingerprints import fingerprints
from gradcheck_suite.reporting.ledger import shown_paths
from gradcheck_suite.reporting.paths import display_path
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from gradcheck_suite.findings import Finding, Report

__all__ = ["SCHEMA_VERSION", "plain", "render", "to_document"]

SCHEMA_VERSION = 1
Document: TypeAlias = dict[str, Any]


def render(report: Report) -> str:
    """Return the report as JSON in ASCII, indented, with one newline at its end."""
    return json.dumps(to_document(report), indent=2, allow_nan=False) + "\n"


def to_document(report: Report) -> Document:
    """Return the report as the dicts, lists and scalars that JSON knows."""
    counts = {f"{severity.value}s": report.count(severity) for severity in Severity}
    return {
        "schema": SCHEMA_VERSION,
        "tool": plain(report.tool),
        "version": __version__,
        "findings": [
            {**_finding(finding), "fingerprint": fingerprint}
            for finding, fingerprint in zip(report.findings, fingerprints(report), strict=True)
        ],
        "verdicts": [
            {
                "output": plain(verdict.output),
                "input": plain(verdict.input),
                "status": verdict.status,
                "reason": plain(verdict.reason),
                "evidence": plain(verdict.evidence),
            }
            for verdict in report.verdicts
        ],
        "not_covered": plain(report.not_covered),
        **({} if report.ledger is None else {"ledger": plain(shown_paths(report.ledger))}),
        # The counts are of this report's findings, whatever a tool's own figures are named.
        "summary": plain(report.summary) | counts,
    }


def plain(value: object) -> Any:
    """Return ``value`` as JSON can hold it.

    Floats that JSON has no number for become the strings "NaN", "Infinity" and "-Infinity".
    Mappings are sorted by key. Lone surrogates, which many JSON readers refuse, become backslash
    escapes. What is no JSON at all becomes its ``str``.
    """
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else _non_finite(value)
    if isinstance(value, Mapping):
        pairs = ((_unicode(str(key)), plain(item)) for key, item in value.items())
        return dict(sorted(pairs, key=lambda pair: pair[0]))
    if isinstance(value, (tuple, list)):
        return [plain(item) for item in value]
    return _unicode(str(value))


def _finding(finding: Finding) -> Document:
    location = finding.location
    return {
        "code": plain(finding.code),
        "rule": plain(finding.rule),
        "severity": finding.severity.value,
        "message": plain(finding.message),
        "path": None if location is None else plain(display_path(location.path)),
        "cell": None if location is None else location.cell,
        "line": None if location is None else location.line,
        "column": None if location is None else location.column,
        "end_line": None if location is None else location.end_line,
        "end_column": None if location is None else location.end_column,
        "function": None if location is None else plain(location.function),
        "related": [
            {
                "path": plain(display_path(related.location.path)),
                "cell": related.location.cell,
                "line": related.location.line,
                "message": plain(related.message),
            }
            for related in finding.related
        ],
        "hint": plain(finding.hint),
        "evidence": plain(finding.evidence),
        "detector": finding.detector,
        "fixable": finding.fixable,
    }


def _unicode(text: str) -> str:
    if text.isascii():
        return text
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _non_finite(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"
