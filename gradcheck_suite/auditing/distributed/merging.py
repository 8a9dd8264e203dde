"""Join what the ranks of a job have found into one report."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gradcheck_suite.findings import Finding, Location, Related, Report
from gradcheck_suite.reporting.json import plain, to_document
from gradcheck_suite.reporting.paths import display_path
from gradcheck_suite.reporting.text import ranks_in_words
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gradcheck_suite.findings import JSON

__all__ = ["RANK", "WORLD_SIZE", "merge_ranks", "packed", "unpacked"]

RANK, WORLD_SIZE = "rank", "world_size"
"""The keys of a summary that hold which rank a report is of, and of how many."""


def packed(report: Report) -> bytes:
    """Return what another rank needs to know of a report: all but its ledger, as JSON."""
    return json.dumps(to_document(replace(report, ledger=None)), allow_nan=False).encode()


def unpacked(message: bytes) -> Report:
    """Return the report that another rank has packed, or that a child process has written."""
    document = json.loads(message)
    counted = {f"{severity.value}s" for severity in Severity}
    return Report(
        tool=document["tool"],
        findings=tuple(map(_finding, document["findings"])),
        summary={key: each for key, each in document["summary"].items() if key not in counted},
        not_covered=tuple(document["not_covered"]),
        ledger=document.get("ledger"),
    )


def merge_ranks(reports: Mapping[int, Report], *, size: int, own: int = 0) -> Report:
    """Join the reports of some ranks: each mistake once, with the ranks that have made it.

    Args:
        reports: by rank.
        size: how many ranks there are.
        own: the rank whose ledger and figures the report has; its findings come first.
    """
    order = sorted(reports, key=lambda rank: (rank != own, rank))
    kept: dict[tuple[object, ...], Finding] = {}
    ranks: dict[tuple[object, ...], list[int]] = {}
    for rank in order:
        alike: Counter[tuple[object, ...]] = Counter()
        for finding in reports[rank].findings:
            mistake = _mistake(finding)
            alike[mistake] += 1
            key = (*mistake, alike[mistake])
            other = kept.setdefault(key, finding)
            if finding.severity > other.severity:
                kept[key] = finding
            ranks.setdefault(key, []).append(rank)
    first = reports[order[0]]
    seen = any(reports[rank].summary.get("training_seen") for rank in order)
    summary = {key: value for key, value in first.summary.items() if key != RANK}
    return replace(
        first,
        findings=tuple(_on(finding, ranks[key], size) for key, finding in kept.items()),
        summary={**summary, "training_seen": seen, WORLD_SIZE: size},
        not_covered=tuple(_lines({rank: reports[rank].not_covered for rank in order}, size)),
    )


def _mistake(finding: Finding) -> tuple[object, ...]:
    """Return what findings of one mistake on several ranks have in common: its code and place."""
    place = finding.location
    parameters = finding.evidence.get("parameters")
    names = tuple(map(str, plain(parameters))) if isinstance(parameters, (list, tuple)) else ()
    if place is None:
        return finding.code, names or finding.message
    return finding.code, display_path(place.path), place.cell, place.line, place.function, names


def _on(finding: Finding, ranks: Sequence[int], size: int) -> Finding:
    # What compares ranks names them itself.
    if "ranks" in finding.evidence:
        return finding
    where: dict[str, JSON] = {"ranks": [*sorted(ranks)], WORLD_SIZE: size}
    return replace(finding, evidence={**finding.evidence, **where})


def _lines(lines: Mapping[int, Sequence[str]], size: int) -> Iterable[str]:
    """Yield what is said on all ranks once, and name the ranks of what only some say."""
    said: dict[str, list[int]] = {}
    for rank, own in lines.items():
        for line in own:
            said.setdefault(line, []).append(rank)
    for line, ranks in said.items():
        yield line if len(ranks) == size else f"on {ranks_in_words(ranks)}: {line}"


def _finding(document: Mapping[str, Any]) -> Finding:
    return Finding(
        code=document["code"],
        rule=document["rule"],
        severity=Severity(document["severity"]),
        message=document["message"],
        detector=document["detector"],
        location=_location(document),
        related=tuple(
            Related(place, each["message"])
            for each in document["related"]
            if (place := _location(each)) is not None
        ),
        hint=document["hint"],
        evidence=document["evidence"],
        fixable=document["fixable"],
    )


def _location(document: Mapping[str, Any]) -> Location | None:
    if document["path"] is None or document["line"] is None:
        return None
    rest = ("column", "end_line", "end_column", "function", "cell")
    known = {each: document.get(each) for each in rest}
    return Location(document["path"], document["line"], **known)
