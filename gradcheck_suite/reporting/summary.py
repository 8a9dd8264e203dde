"""Say in one line what a report comes to."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from gradcheck_suite.reporting.paths import display_path
from gradcheck_suite.reporting.text import one_line, plural, visible
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from gradcheck_suite.findings import Report, VerdictStatus

__all__ = [
    "COVERED",
    "NOT_SHOWN",
    "TRAINING_SEEN",
    "conclusion",
    "count_findings",
    "count_verdicts",
    "headline",
    "sentences_covered",
    "verdict_and_remarks",
]

# The figures of a summary that say how much was looked at: key, noun, verb.
_WATCHED = (
    ("steps", "step", "watched"),
    ("files", "file", "checked"),
)
SILENCED = "silenced"
"""The key of a summary that holds how many findings comments or options have kept back."""
KNOWN = "known"
"""The key of a summary that holds how many findings an earlier report has, which are left out."""
FAILURE = "failure"
"""The key of a summary that holds what a script that was watched ended with, if that is no good."""
TRAINING_SEEN = "training_seen"
"""The key of a summary that holds whether an audit had anything to watch."""
NOT_SHOWN = frozenset(
    {
        "steps_passed_over",
        SILENCED,
        KNOWN,
        FAILURE,
        TRAINING_SEEN,
        "rank",
        "world_size",
        *(key for key, _, _ in _WATCHED),
        # How an audit works, and not what came of it.
        "saved_tensors",
        "saved_tensors_checked",
        "saved_tensors_checksummed",
    }
)
"""The keys of a summary that people are not shown: the conclusion tells them, or programs ask."""
COVERED = "covered"
"""The key of a summary that holds sentences on what was looked at."""
_VERDICT_ORDER: tuple[VerdictStatus, ...] = ("pass", "fail", "inconclusive", "not covered")


def conclusion(report: Report) -> str:
    """Return the one-line verdict that ends a report for people.

    >>> from gradcheck_suite.findings import Report
    >>> conclusion(Report(tool="gradcheck-suite audit", summary={"steps": 12}))
    'gradcheck-suite audit: nothing found (12 steps watched)'
    >>> conclusion(Report(tool="gradcheck-suite audit", summary={"training_seen": False}))
    'gradcheck-suite audit: no training seen: 0 steps, 0 backwards in this process'
    >>> conclusion(Report(tool="gradcheck-suite audit", summary={"steps": 12, "known": 3}))
    'gradcheck-suite audit: nothing new found (12 steps watched; 3 known)'
    >>> failed = {"failure": "train.py ended with ValueError", "steps": 49}
    >>> conclusion(Report(tool="gradcheck-suite audit", summary=failed))
    'gradcheck-suite audit: train.py ended with ValueError; nothing found (49 steps watched)'
    """
    sentence, remarks = verdict_and_remarks(report)
    return f"{sentence} ({remarks})" if remarks else sentence


def verdict_and_remarks(report: Report) -> tuple[str, str]:
    """Return the verdict and what was looked at for it, for pages that have no room for both."""
    found = count_findings(report)
    known = report.summary.get(KNOWN)
    failed = sum(verdict.status == "fail" for verdict in report.verdicts)
    if found:
        sentence = found + _where(report)
    elif failed:
        sentence = f"{plural(failed, 'gradient')} failed"
    elif report.summary.get(TRAINING_SEEN) is False:
        sentence = "no training seen: 0 steps, 0 backwards in this process"
    else:
        sentence = "nothing new found" if known else "nothing found"
    failure = report.summary.get(FAILURE)
    if isinstance(failure, str):
        sentence = f"{visible(failure)}; {sentence}"
    remarks = [] if report.summary.get(TRAINING_SEEN) is False else _watched(report)
    if isinstance(known, int) and known:
        remarks.append(f"{known:,} known")
    if report.verdicts:
        remarks.append(f"gradients: {count_verdicts(report)}")
    silenced = report.summary.get(SILENCED)
    if isinstance(silenced, int) and silenced:
        remarks.append(f"{plural(silenced, 'finding')} silenced")
    if report.not_covered:
        remarks.append(f"{plural(len(report.not_covered), 'thing')} not covered")
    return f"{one_line(report.tool)}: {sentence}", "; ".join(remarks)


def headline(report: Report) -> str:
    """Return the number of findings and the first of the most severe ones, on one line.

    >>> from gradcheck_suite import catalogue
    >>> from gradcheck_suite.findings import Finding, Report
    >>> found = Finding.of(catalogue.LEAF_REBOUND, "`w` is no leaf", detector="lint")
    >>> headline(Report(tool="gradcheck-lint", findings=(found,)))
    '1 warning: GCS102 leaf-rebound: `w` is no leaf'
    """
    if not report.findings:
        return conclusion(report)
    first = max(report.findings, key=lambda finding: finding.severity)
    told = one_line(f"{first.code} {first.rule}: {first.message}")
    return f"{count_findings(report)}{', first' if len(report.findings) > 1 else ':'} {told}"


def sentences_covered(report: Report) -> tuple[str, ...]:
    """Return what a check says that it covered, beyond what the verdicts show."""
    covered = report.summary.get(COVERED)
    return tuple(map(str, covered)) if isinstance(covered, (tuple, list)) else ()


def count_findings(report: Report) -> str:
    """Return "2 errors, 1 warning", leaving out severities that do not occur."""
    counts = ((report.count(severity), severity.value) for severity in Severity)
    return ", ".join(plural(count, noun) for count, noun in counts if count)


def count_verdicts(report: Report) -> str:
    """Return "12 pass, 1 inconclusive", leaving out statuses that do not occur."""
    counts = Counter(verdict.status for verdict in report.verdicts)
    return ", ".join(f"{counts[status]:,} {status}" for status in _VERDICT_ORDER if counts[status])


def _where(report: Report) -> str:
    places = (finding.location for finding in report.findings)
    paths = sorted({display_path(place.path) for place in places if place is not None})
    if not paths:
        return ""
    return f" in {visible(paths[0])}" if len(paths) == 1 else f" in {plural(len(paths), 'file')}"


def _watched(report: Report) -> list[str]:
    told = []
    for key, noun, verb in _WATCHED:
        count = report.summary.get(key)
        if not isinstance(count, int) or isinstance(count, bool):
            continue
        passed_over = report.summary.get(f"{key}_passed_over")
        watched = f"{count - passed_over:,} of " if isinstance(passed_over, int) else ""
        told.append(f"{watched}{plural(count, noun)} {verb}{_on_ranks(report)}")
    return told


def _on_ranks(report: Report) -> str:
    rank, size = report.summary.get("rank"), report.summary.get("world_size")
    if not isinstance(size, int):
        return ""
    return f" on each of {size} ranks" if rank is None else f" on rank {rank} of {size}"
