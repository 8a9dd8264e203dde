"""Give findings names that last while lines move."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from gradcheck_suite.errors import UsageError
from gradcheck_suite.reporting.paths import display_path
from gradcheck_suite.reporting.source import SourceLines
from gradcheck_suite.reporting.summary import KNOWN

if TYPE_CHECKING:
    from pathlib import Path

    from gradcheck_suite.findings import Finding, Location, Report

__all__ = ["fingerprints", "without_known"]


_NUMBER: Final = re.compile(r"(?<![\w.])[-+]?\d+(?:,\d{3})*(?:\.\d+)?(?:e[-+]?\d+)?")
"""A number of its own, which is no part of a name such as ``fc1`` or ``layers.0``."""


def fingerprints(report: Report) -> list[str]:
    """Return what stays the same for each finding when unrelated lines move it about the file.

    In a notebook, unrelated cells may move it as well.

    The hash is of the code, the path, the text of the line with runs of spaces made one, and
    how many findings further up in the file have the same three. Where the text is gone, the
    function takes its place; of a finding without a place, the message does, whose numbers may
    differ from run to run and do not count.
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


def without_known(report: Report, earlier: Path) -> Report:
    """Return the report without the findings that an earlier one in JSON has, and their number.

    Raises:
        UsageError: ``earlier`` can't be read, or is no report whose findings have fingerprints.
    """
    try:
        document = json.loads(earlier.read_bytes())
        known = {finding["fingerprint"] for finding in document["findings"]}
    except OSError as error:
        raise UsageError(f"cannot read the report {earlier}: {error.strerror or error}") from error
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise UsageError(
            f"{earlier} is no report of gradcheck-suite in JSON with fingerprints "
            f"({type(error).__name__}: {error}); write one with --output-format json"
        ) from error
    pairs = zip(report.findings, fingerprints(report), strict=True)
    new = tuple(finding for finding, digest in pairs if digest not in known)
    counted = {**report.summary, KNOWN: len(report.findings) - len(new)}
    return replace(report, findings=new, summary=counted)


def _order(place: Location | None) -> tuple[int, int, int]:
    return (0, 0, 0) if place is None else (place.cell or 0, place.line, place.column or 0)


def _identity(finding: Finding, sources: SourceLines) -> tuple[str, ...]:
    place = finding.location
    if place is None:
        return (finding.code, "", _NUMBER.sub("#", " ".join(finding.message.split())))
    text = sources.line_at(place)
    line = " ".join(text.split()) if text is not None else place.function or ""
    return (finding.code, display_path(place.path), line)
