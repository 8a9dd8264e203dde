"""Write a report as SARIF 2.1.0, the format of code scanning services and editors.

It keeps the rules of GitHub's "SARIF support for code scanning", which refuses a whole file for
one result without a place, and any run with more than ``_MOST_RESULTS``.

The names are those of the OASIS standard "Static Analysis Results Interchange Format (SARIF)
Version 2.1.0".
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import quote

from gradcheck_suite import catalogue
from gradcheck_suite._addresses import DOCUMENTATION, page_of
from gradcheck_suite._version import __version__
from gradcheck_suite.findings import Location
from gradcheck_suite.reporting.concise import with_cell
from gradcheck_suite.reporting.fingerprints import fingerprints
from gradcheck_suite.reporting.json import plain
from gradcheck_suite.reporting.paths import display_path, is_pseudo_path
from gradcheck_suite.reporting.source import SourceLines
from gradcheck_suite.reporting.text import visible

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_suite.catalogue import Entry
    from gradcheck_suite.findings import Finding, Report

__all__ = ["render", "to_document"]

Document: TypeAlias = dict[str, Any]

_SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)
_ROOT = "%SRCROOT%"
_FINGERPRINT = "gradcheckSuite/v1"
# GitHub takes no result without a place: the working directory stands for the whole run.
_OF_THE_WHOLE_RUN = Location(".", 1)
_MOST_RESULTS = 25_000
# GitHub sorts by this property, and knows these three values.
_PROBLEM_SEVERITIES = {"error": "error", "warning": "warning", "note": "recommendation"}


def render(report: Report) -> str:
    """Return the report as a SARIF log in ASCII, indented, with one newline at its end."""
    return json.dumps(to_document(report), indent=2, allow_nan=False) + "\n"


def to_document(report: Report) -> Document:
    """Return the report as a SARIF log of one run."""
    report, left_out = _largest_allowed(report)
    rules = {finding.code: _rule(finding) for finding in _by_code(report)}
    indices = {code: index for index, code in enumerate(rules)}
    sources = SourceLines()
    return {
        "$schema": _SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": _text(report.tool),
                        "version": __version__,
                        "informationUri": DOCUMENTATION,
                        "rules": list(rules.values()),
                    }
                },
                "invocations": [
                    {
                        "executionSuccessful": True,
                        "toolExecutionNotifications": [*left_out, *_notifications(report)],
                    }
                ],
                "originalUriBaseIds": {
                    _ROOT: {"description": {"text": "The working directory of the run."}}
                },
                "columnKind": "unicodeCodePoints",
                "results": [
                    _result(finding, sources, indices[finding.code], fingerprint)
                    for finding, fingerprint in zip(
                        report.findings, fingerprints(report), strict=True
                    )
                ],
                "properties": {"summary": plain(report.summary)},
            }
        ],
    }


def _largest_allowed(report: Report) -> tuple[Report, list[Document]]:
    """Return the report with as many findings as a run may have, and what tells of the others."""
    findings = report.findings
    if len(findings) <= _MOST_RESULTS:
        return report, []
    kept = sorted(findings, key=lambda finding: finding.severity, reverse=True)[:_MOST_RESULTS]
    text = (
        f"{len(findings) - _MOST_RESULTS} of {len(findings)} findings are left out, the mildest: "
        f"a run of SARIF that GitHub takes has at most {_MOST_RESULTS}"
    )
    return replace(report, findings=tuple(kept)), [{"level": "warning", "message": {"text": text}}]


def _by_code(report: Report) -> list[Finding]:
    first = {finding.code: finding for finding in reversed(report.findings)}
    return [first[code] for code in sorted(first)]


def _rule(finding: Finding) -> Document:
    entry = catalogue.find(finding.code)
    level = (entry or finding).severity.value
    title = (entry.title if entry else "") or finding.rule
    return {
        "id": _text(finding.code),
        "name": _text(finding.rule),
        "shortDescription": {"text": _text(title)},
        "fullDescription": {"text": _text((entry.what if entry else "") or title)},
        "help": _help(entry, title),
        **({"helpUri": page_of(entry.code)} if entry else {}),
        "defaultConfiguration": {"level": level},
        "properties": {
            "tags": ["autograd", "pytorch"],
            "problem.severity": _PROBLEM_SEVERITIES[level],
        },
    }


def _help(entry: Entry | None, title: str) -> Document:
    if entry is None:
        return {"text": _text(title), "markdown": _text(title)}
    prose = [("", entry.what), ("Why it is bad", entry.why)]
    code = [("Example", entry.example), ("Use instead", entry.instead)]
    plain_parts = [f"{heading}: {body}" if heading else body for heading, body in prose if body]
    plain_parts += [f"{heading}:\n{body.rstrip()}" for heading, body in code if body]
    marked_parts = [
        f"## {heading}\n\n{body}" if heading else body for heading, body in prose if body
    ]
    marked_parts += [
        f"## {heading}\n\n```python\n{body.rstrip()}\n```" for heading, body in code if body
    ]
    return {
        "text": _text("\n\n".join(plain_parts) or title),
        "markdown": _text("\n\n".join(marked_parts) or title),
    }


def _result(finding: Finding, sources: SourceLines, index: int, fingerprint: str) -> Document:
    message = with_cell(finding.message, finding.location)
    if finding.hint:
        message = f"{message}\nhelp: {finding.hint}"
    return {
        "ruleId": _text(finding.code),
        "ruleIndex": index,
        "level": finding.severity.value,
        "message": {"text": _message(message)},
        "locations": [
            _location(finding.location or _OF_THE_WHOLE_RUN, sources),
        ],
        "relatedLocations": [
            {
                "id": number,
                "message": {"text": _message(with_cell(related.message, related.location))},
                **_location(related.location, sources),
            }
            for number, related in enumerate(finding.related)
        ],
        "partialFingerprints": {_FINGERPRINT: fingerprint},
        "properties": {
            "detector": finding.detector,
            "evidence": plain(finding.evidence),
            "fixable": finding.fixable,
        },
    }


def _location(place: Location, sources: SourceLines) -> Document:
    location = sources.in_file(place)
    physical: Document = {"artifactLocation": _artifact(location.path)}
    if location.line >= 1:
        physical["region"] = dict(_region(location))
    document: Document = {"physicalLocation": physical}
    if location.function:
        document["logicalLocations"] = [
            {"fullyQualifiedName": _text(location.function), "kind": "function"}
        ]
    return document


def _region(location: Location) -> Iterator[tuple[str, int]]:
    yield "startLine", location.line
    if location.column is not None and location.column >= 1:
        yield "startColumn", location.column
    if location.end_line is not None and location.end_line >= location.line:
        yield "endLine", location.end_line
    ends_there = location.end_line in {None, location.line}
    least = (location.column or 1) if ends_there else 1
    if location.end_column is not None and location.end_column >= max(least, 1):
        yield "endColumn", location.end_column


def _artifact(path: str) -> Document:
    shown = display_path(path)
    if is_pseudo_path(shown):
        return {"uri": _quoted(shown)}
    if Path(shown).is_absolute() or shown.startswith("../"):
        # SARIF wants no ".." in a reference, and no base for an absolute one.
        return {"uri": "file://" + _quoted(_absolute(shown), drive=os.name == "nt")}
    return {"uri": _quoted(shown), "uriBaseId": _ROOT}


def _absolute(path: str) -> str:
    whole = os.path.abspath(path).replace(os.sep, "/")  # noqa: PTH100 - Path keeps ".."
    return whole if whole.startswith("/") else "/" + whole


def _quoted(path: str, *, drive: bool = False) -> str:
    return quote(path, safe="/:" if drive else "/", errors="surrogatepass")


def _notifications(report: Report) -> Iterator[Document]:
    for reason in report.not_covered:
        yield {"level": "note", "message": {"text": _message(f"Not covered: {reason}")}}
    for verdict in report.verdicts:
        if verdict.status in {"inconclusive", "not covered"}:
            subject = f"The gradient of {verdict.output} with respect to {verdict.input}"
            why = f": {verdict.reason}" if verdict.reason else ""
            text = _message(f"{subject} is {verdict.status}{why}")
            yield {"level": "note", "message": {"text": text}}


def _text(text: str) -> str:
    return visible(text, keep_newlines=True)


def _message(text: str) -> str:
    """Return ``text`` with what SARIF would take for a link, such as ``f[0](x)``, escaped."""
    return re.sub(r"\[([^\[\]]*)\](?=\()", r"\\[\1\\]", _text(text))
