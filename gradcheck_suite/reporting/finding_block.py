"""Draw one finding: what it is, where, the source round it, and what to do."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.text import Text

from gradcheck_suite.reporting.code_frame import Mark, draw_code_frame
from gradcheck_suite.reporting.concise import place
from gradcheck_suite.reporting.layout import paragraph
from gradcheck_suite.reporting.paths import display_path
from gradcheck_suite.reporting.text import plural, ranks_in_words

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_suite.findings import Finding, Location, Related
    from gradcheck_suite.reporting.layout import Page
    from gradcheck_suite.reporting.source import SourceLines

__all__ = ["draw_finding", "finding_remarks"]

_LINES_AROUND = 2


def draw_finding(finding: Finding, sources: SourceLines, page: Page) -> Iterator[Text]:
    """Yield the finding as lines: header, message, frames of source, help and remarks.

    Related places within the frame of the finding are marked there; each other one has a line
    and a frame of its own. Where source cannot be shown, its place is still named.
    """
    yield from _header(finding, page)
    yield from paragraph(finding.message, page)
    near, far = _split(finding, sources)
    digits = _digits(finding, sources)
    if finding.location is not None and _can_show(finding.location, sources):
        yield Text()
        yield from draw_code_frame(
            sources.lines_of(finding.location),
            _marks(finding, finding.location, near, page),
            around=_LINES_AROUND,
            digits=digits,
            page=page,
        )
    for related in far:
        yield Text()
        yield from _related(related, sources, digits, page)
    remarks = finding_remarks(finding)
    if finding.hint or remarks:
        yield Text()
    if finding.hint:
        yield from paragraph(finding.hint, page, label="help: ", label_style=page.style("help"))
    if remarks:
        yield from paragraph(remarks, page, style=page.style("faint"))


def _header(finding: Finding, page: Page) -> Iterator[Text]:
    style = page.style(finding.severity.value)
    row = Text(f"{finding.severity.value} {page.safe(finding.code)}", style=style)
    row = Text().append_text(row).append(f" {page.safe(finding.rule)}", page.style("strong"))
    if finding.location is None:
        yield row
    else:
        yield from _beside(row, _where(finding.location, page), page)


def _beside(row: Text, where: Text, page: Page) -> Iterator[Text]:
    """Yield ``where`` behind ``row``, or below it if the two are wider than the page."""
    if row.cell_len + 2 + where.cell_len <= page.width:
        yield row.append("  ").append_text(where)
    else:
        yield row
        yield Text(" " * page.indent).append_text(where)


def _where(location: Location, page: Page) -> Text:
    where = Text(page.safe(place(location)))
    if location.function and location.function != "<module>":
        call = "" if location.function.endswith((">", ")")) else "()"
        where.append(f" in {page.safe(location.function)}{call}", page.style("faint"))
    return where


def _split(finding: Finding, sources: SourceLines) -> tuple[list[Related], list[Related]]:
    """Return the related places that the finding's own frame shows, and the others."""
    near: list[Related] = []
    far: list[Related] = []
    here = finding.location
    for related in finding.related:
        there = related.location
        inside = (
            here is not None
            and there.cell == here.cell
            and abs(there.line - here.line) <= _LINES_AROUND
            and display_path(there.path) == display_path(here.path)
            and _can_show(here, sources)
            and _can_show(there, sources)
        )
        (near if inside else far).append(related)
    return near, far


def _can_show(location: Location, sources: SourceLines) -> bool:
    return sources.line_at(location) is not None


def _digits(finding: Finding, sources: SourceLines) -> int:
    """Return how many digits the line numbers need, so that all gutters of a finding line up."""
    numbers = [
        related.location.line for related in finding.related if _can_show(related.location, sources)
    ]
    if finding.location is not None:
        lines = sources.lines_of(finding.location)
        numbers.append(min(finding.location.line + _LINES_AROUND, len(lines)))
    return len(str(max(numbers, default=0)))


def _marks(finding: Finding, here: Location, near: list[Related], page: Page) -> list[Mark]:
    """Return the mark of the finding and those near it; one at the very same place labels it."""
    own = Mark(here, "^", page.style(finding.severity.value))
    labels = [related.message for related in near if _same_place(related.location, here)]
    return [
        replace(own, label="; ".join(labels)),
        *(
            Mark(related.location, "-", page.style("related"), related.message)
            for related in near
            if not _same_place(related.location, here)
        ),
    ]


def _same_place(there: Location, here: Location) -> bool:
    return there.line == here.line and there.column in {None, here.column}


def _related(related: Related, sources: SourceLines, digits: int, page: Page) -> Iterator[Text]:
    where = _where(related.location, page)
    style = page.style("related")
    message = page.safe(related.message)
    if page.indent + cell_len(message) + 2 <= page.prose_width:
        yield from _beside(Text(" " * page.indent).append(message, style), where, page)
    else:
        yield from paragraph(message, page, style=style)
        yield Text(" " * page.indent).append_text(where)
    if _can_show(related.location, sources):
        mark = Mark(related.location, "-", style)
        lines = sources.lines_of(related.location)
        yield from draw_code_frame(lines, [mark], around=0, digits=digits, page=page)


def finding_remarks(finding: Finding) -> str:
    """Return what there is to say beside the message: how often, why not more severe, by whom."""
    remarks: list[str] = []
    count = finding.evidence.get("count")
    if isinstance(count, int) and count > 1:
        remarks.append(f"seen {plural(count, 'time')}")
    doubts = finding.evidence.get("lowered")
    if isinstance(doubts, (tuple, list)) and doubts:
        remarks.append(f"lowered: {'; '.join(map(str, doubts))}")
    others = finding.evidence.get("also_found_by")
    if isinstance(others, (tuple, list)) and others:
        remarks.append(f"also found by {' and '.join(map(str, others))}")
    ranks, size = finding.evidence.get("ranks"), finding.evidence.get("world_size")
    if isinstance(ranks, (tuple, list)) and isinstance(size, int):
        some = (
            f"only on {ranks_in_words([each for each in ranks if isinstance(each, int)])} of {size}"
        )
        remarks.append(f"on all {size} ranks" if len(ranks) == size else some)
    if finding.fixable and finding.detector == "lint":
        remarks.append("fixable with --fix")
    return "; ".join(remarks)
