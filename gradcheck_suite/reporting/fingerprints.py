"""Give findings names that last while lines move."""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import TYPE_CHECKING

from gradcheck_suite.reporting.paths import display_path
from gradcheck_suite.reporting.source import SourceLines

if TYPE_CHECKING:
    from gradcheck_suite.findings import Finding, Location, Report

__all__ = ["fingerprints"]


def fingerprints(report: Report) -> list[str]:
    """Return what stays the same for each finding when unrelated lines move it about the file.

    In a notebook, unrelated cells may move it as well.

    The hash is of the code, the path, the text of the line with runs of spaces made one, and
    how many findings further up in the file have the same three. Where the text is gone, the
    function takes its place.
    """
    sources = SourceLines()
    keys = [_identity(finding, sources) for finding in report.findings]
    places = [finding.location for finding in report.findings]
    downwards = sorted(
        range(len(keys)),
        key=lambda index: _order(places[index]),
    )
    seen: Counter[tuple[str, ...]] = Counter()
    digests = [""] * len(keys)
    for index in downwards:
        key = keys[index]
        text = "\0".join((*key, str(seen[key])))
        digests[index] = hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:32]
        seen[key] += 1
    return digests


def _order(place: Location | None) -> tuple[int, int, int]:
    return (0, 0, 0) if place is None else (place.cell or 0, place.line, place.column or 0)


def _identity(finding: Finding, sources: SourceLines) -> tuple[str, ...]:
    place = finding.location
    if place is None:
        return (finding.code, "", "")
    text = sources.line_at(place)
    line = " ".join(text.split()) if text is not None else place.function or ""
    return (finding.code, display_path(place.path), line)
