"""Write a report as GitHub-flavoured Markdown, for the summary of a CI job or a comment.

Names in code are ``<code>`` elements and not backticks: in those no character can be escaped, and
outside of code GitHub makes an emoji of the place ``train.py:100:9``.
"""

from __future__ import annotations

import re
import unicodedata
from typing import TYPE_CHECKING

from gradcheck_suite import catalogue
from gradcheck_suite._addresses import page_of
from gradcheck_suite.reporting.concise import place
from gradcheck_suite.reporting.source import SourceLines
from gradcheck_suite.reporting.summary import sentences_covered, verdict_and_remarks
from gradcheck_suite.reporting.text import one_line, visible

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gradcheck_suite.findings import Finding, Location, Report, Verdict

__all__ = ["render"]

_LINES_AROUND = 2
_WIDEST = 160
# What GitHub-flavoured Markdown takes for markup anywhere, and what it does at the start of a line.
_SPECIAL = re.compile(r"[\\`*_\[\]<>|~$#&]")
_OPENER = re.compile(r"^(\d*)([-+=.)])")


def render(report: Report) -> str:
    """Return the report as Markdown: the counts, a table of findings, the source of each.

    Verdicts that passed are counted and not listed. Nothing in a report can become markup, end a
    cell of a table or leave a block of source.
    """
    sources = SourceLines()
    findings = sorted(report.findings, key=lambda finding: -finding.severity.weight)
    verdict, remarks = verdict_and_remarks(report)
    blocks = [f"## {_escaped(verdict)}"]
    if remarks:
        blocks.append(_escaped(remarks))
    if findings:
        head = ("code", "severity", "place", "message")
        blocks.append(_table(head, map(_row, findings)))
    for finding in findings:
        blocks.extend(_details(finding, sources))
    blocks.extend(_verdicts(report.verdicts))
    blocks.extend(_sentences("covered", sentences_covered(report)))
    blocks.extend(_sentences("not covered", report.not_covered))
    return "\n\n".join(blocks) + "\n"


def _row(finding: Finding) -> tuple[str, ...]:
    return (
        _linked(finding.code),
        finding.severity.value,
        _where(finding.location),
        _prose(finding.message),
    )


def _linked(code: str) -> str:
    """Return a code that leads to its page, where the catalogue has it."""
    shown = _escaped(code)
    return shown if catalogue.find(code) is None else f"[{shown}]({page_of(code)})"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = (head, ["---"] * len(head), *rows)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _details(finding: Finding, sources: SourceLines) -> Iterator[str]:
    """Yield what a row has no room for: the source, related places, the next step."""
    frame = [] if finding.location is None else list(_frame(finding.location, sources))
    items = [
        f"{_prose(related.message)}: {_where(related.location)}" for related in finding.related
    ]
    if finding.hint:
        items.append(f"help: {_prose(finding.hint)}")
    if not frame and not items:
        return
    name = f"{_escaped(finding.code)} {_escaped(finding.rule)} {_where(finding.location)}"
    yield f"### {name.rstrip()}"
    if frame:
        # No line of a frame can end the block: each begins with a number or spaces, and a bar.
        yield "\n".join(("```text", *frame, "```"))
    if items:
        yield _list(items)


def _frame(location: Location, sources: SourceLines) -> Iterator[str]:
    """Yield the line of a place with some lines around it; nothing where there is no source."""
    if sources.line_at(location) is None:
        return
    lines = sources.lines_of(location)
    first = max(location.line - _LINES_AROUND, 1)
    last = min(location.line + _LINES_AROUND, len(lines))
    while first < location.line and not lines[first - 1].strip():
        first += 1
    while last > location.line and not lines[last - 1].strip():
        last -= 1
    digits = len(str(last))
    for number in range(first, last + 1):
        line = lines[number - 1].rstrip()
        here = number == location.line
        start, stop = _columns(line, location) if here else (0, 0)
        left = start - _WIDEST // 2 if start > _WIDEST // 2 and len(line) > _WIDEST else 0
        right = left + _WIDEST
        dots = "..." if left else "", "..." if len(line) > right else ""
        code = f"{dots[0]}{_shown(line[left:right])}{dots[1]}"
        yield f"{number:>{digits}} | {code}".rstrip()
        if here:
            before = len(dots[0]) + _cells(_shown(line[left:start]))
            marks = max(_cells(_shown(line[start : min(stop, right)])), 1)
            yield f"{'':>{digits}} | {' ' * before}{'^' * marks}"


def _columns(line: str, place: Location) -> tuple[int, int]:
    """Return the marked code points from 0, the end being exclusive: all, without a column."""
    if place.column is None or place.column < 1:
        return len(line) - len(line.lstrip()), len(line)
    start = min(place.column - 1, len(line))
    if place.end_line is not None and place.end_line > place.line:
        return start, len(line)
    return start, start + 1 if place.end_column is None else place.end_column - 1


def _shown(code: str) -> str:
    return visible(code.replace("\t", "    "))


def _cells(shown: str) -> int:
    """Return how wide a text is where each character is as wide as another, or twice."""
    return sum(
        0 if unicodedata.combining(c) else 1 + (unicodedata.east_asian_width(c) in "WF")
        for c in shown
    )


def _verdicts(verdicts: Sequence[Verdict]) -> Iterator[str]:
    rows = [
        (
            verdict.status,
            _code(one_line(verdict.output)),
            _code(one_line(verdict.input)),
            _prose(verdict.reason or ""),
        )
        for verdict in verdicts
        if verdict.status != "pass"
    ]
    if rows:
        yield "### gradients"
        yield _table(("verdict", "output", "with respect to", "reason"), rows)


def _sentences(heading: str, sentences: Sequence[str]) -> Iterator[str]:
    if sentences:
        yield f"### {heading}"
        yield _list(map(_prose, sentences))


def _list(items: Iterable[str]) -> str:
    return "\n".join(f"- {item}" for item in items)


def _where(location: Location | None) -> str:
    return "" if location is None else _code(one_line(place(location)))


def _prose(text: str) -> str:
    """Return running text in which what stands between backticks is code."""
    lines = [one_line(line) for line in text.splitlines()]
    return "<br>".join(_prose_line(line) for line in lines if line)


def _prose_line(line: str) -> str:
    pieces = line.split("`")
    if len(pieces) % 2 == 0:  # quotes that do not pair up quote nothing
        return _escaped(line)
    return "".join(_code(p) if i % 2 else _escaped(p) for i, p in enumerate(pieces))


def _code(line: str) -> str:
    return f"<code>{_escaped(line)}</code>"


def _escaped(text: str) -> str:
    """Return ``text`` on one line such that it is shown as it is."""
    # one_line() would take the spaces between a piece of prose and its code.
    line = visible(" ".join(text.splitlines()))
    return _OPENER.sub(r"\1\\\2", _SPECIAL.sub(r"\\\g<0>", line))
