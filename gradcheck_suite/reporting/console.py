"""Lay out the full report for people, and print it with rich."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.color import ColorSystem
from rich.console import Console
from rich.style import Style
from rich.text import Text

from gradcheck_suite import catalogue
from gradcheck_suite._addresses import DOCUMENTATION
from gradcheck_suite.reporting.code_frame import Mark, draw_code_frame
from gradcheck_suite.reporting.concise import place
from gradcheck_suite.reporting.layout import ASCII, Page, fill, paragraph, wrap
from gradcheck_suite.reporting.ledger import ledger_lines, ledger_title
from gradcheck_suite.reporting.paths import display_path
from gradcheck_suite.reporting.source import SourceLines
from gradcheck_suite.reporting.summary import (
    NOT_SHOWN,
    conclusion,
    sentences_covered,
    verdict_and_remarks,
)
from gradcheck_suite.reporting.text import byte_count, number, plural, ranks_in_words
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import TextIO

    from rich.console import ConsoleOptions, RenderableType, RenderResult

    from gradcheck_suite.findings import JSON, Finding, Location, Related, Report, Verdict
    from gradcheck_suite.reporting.text import ColorChoice

__all__ = ["open_console", "render_for", "render_plain", "renderables"]

_PLAIN_WIDTH = 80
# Up to here every verdict has a line of its own; beyond, all passes are one line with their number,
# and so are others of one output with the same reason, if they are more than two.
_FEW = 6
_MOST_ALIKE = 2
_LEAST_REASON_WIDTH = 24
_LINES_AROUND = 2
_CATALOGUE = f"{DOCUMENTATION}/catalogue.html"
# Notes that are told one by one: what is merely unusual must not hide what is wrong.
_MOST_NOTES = 8
_VERDICT_STYLES = {
    "fail": "error",
    "inconclusive": "warning",
    "not covered": "warning",
    "pass": "ok",
}


def render_for(report: Report, *, stream: TextIO, color: ColorChoice = "auto") -> str:
    """Return the report as text for ``stream``: as wide and as colourful as that can show."""
    target = open_console(stream)
    page = Page.of(target.width, encoding=getattr(stream, "encoding", None))
    # The consoles of old Windows systems are coloured by calls, which text cannot hold.
    shows_color = target.color_system is not None and not target.legacy_windows
    wanted = color == "always" or (color == "auto" and shows_color and not target.no_color)
    return (_colored if wanted else _plain)(_draw(report, page))


def open_console(stream: TextIO, **options: Any) -> Console:
    """Return a console of rich's on ``stream``, as wide as that is.

    Some programs leave ``COLUMNS=0`` behind, which rich takes for the width.
    """
    surroundings = dict(os.environ)
    if not surroundings.get("COLUMNS", "").strip("0"):
        surroundings.pop("COLUMNS", None)
    return Console(file=stream, _environ=surroundings, **options)


def render_plain(report: Report) -> str:
    """Return the report as plain text of 80 columns, its signs in ASCII, without a last newline."""
    page = Page(width=_PLAIN_WIDTH, glyphs=ASCII)
    return _plain(_draw(report, page)).rstrip("\n")


def renderables(report: Report, *, width: int) -> Iterable[RenderableType]:
    """Return what rich prints for the report on a console that is ``width`` cells wide."""
    return (_Drawn(report, width),)


class _Drawn:
    """Draw the report once it is known what its console can print."""

    def __init__(self, report: Report, width: int) -> None:
        self._report = report
        self._width = width

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        del console
        yield from _draw(self._report, Page.of(self._width, encoding=options.encoding))


def _plain(rows: Iterable[Text]) -> str:
    return "".join(f"{row.plain}\n" for row in rows)


def _colored(rows: Iterable[Text]) -> str:
    """Return ``rows`` with escape sequences, but never broken: a path can then be copied.

    The styles use the sixteen standard colours alone, so no terminal needs another set of them.
    """
    console = Console()
    text: list[str] = []
    for row in rows:
        # As a span of another text, the style of the row itself is rendered too.
        for segment in Text().append_text(row).render(console, end="\n"):
            style = segment.style or Style.null()
            text.append(style.render(segment.text, color_system=ColorSystem.STANDARD))
    return "".join(text)


def _draw(report: Report, page: Page) -> Iterator[Text]:
    for row in _rows(report, page):
        row.rstrip()
        yield row


def _rows(report: Report, page: Page) -> Iterator[Text]:
    sources = SourceLines()
    by_severity = sorted(report.findings, key=lambda finding: -finding.severity.weight)
    for finding in by_severity:
        if finding.severity > Severity.NOTE:
            yield from _finding(finding, sources, page)
            yield Text()
    yield from _notes([each for each in by_severity if each.severity is Severity.NOTE], page)
    if report.verdicts:
        yield from _verdicts(report.verdicts, page)
        yield Text()
    for heading, sentences in (
        ("covered", sentences_covered(report)),
        ("not covered", report.not_covered),
    ):
        if sentences:
            yield Text(heading, style=page.style("strong"))
            for sentence in sentences:
                yield from paragraph(sentence, page, label="- ")
            yield Text()
    yield from _ledger(report, page)
    yield from _figures(report, page)
    yield from _pointer(by_severity, page)
    yield from _conclusion(report, page)


def _finding(finding: Finding, sources: SourceLines, page: Page) -> Iterator[Text]:
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
    remarks = _remarks(finding)
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


def _remarks(finding: Finding) -> str:
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


def _notes(notes: Sequence[Finding], page: Page) -> Iterator[Text]:
    """Yield each note as one paragraph without its source, and count those of a long list."""
    if not notes:
        return
    yield Text("notes", style=page.style("strong"))
    for note in notes[:_MOST_NOTES]:
        where = "" if note.location is None else f" {place(note.location)}"
        remarks = _remarks(note)
        told = f"{note.code} {note.rule}{where}: {note.message}{f' ({remarks})' if remarks else ''}"
        yield from paragraph(told, page, label="- ", label_style=page.style("note"))
    if len(notes) > _MOST_NOTES:
        more = plural(len(notes) - _MOST_NOTES, "more note")
        yield from paragraph(f"and {more}, which the other formats list", page, label="- ")
    yield Text()


def _verdicts(verdicts: Sequence[Verdict], page: Page) -> Iterator[Text]:
    """Yield a heading and a line for each verdict, or one line for many that say the same."""
    yield Text("gradients", style=page.style("strong"))
    listed = [
        verdict for status in _VERDICT_STYLES for verdict in verdicts if verdict.status == status
    ]
    passes = sum(verdict.status == "pass" for verdict in verdicts)
    if len(verdicts) > _FEW:
        listed = [verdict for verdict in listed if verdict.status != "pass"]
    groups = _alike(listed) if len(verdicts) > _FEW else [[verdict] for verdict in listed]
    names = [page.safe(_pair(group)) for group in groups]
    status_width = max((len(verdict.status) for verdict in listed), default=0)
    name_width = max((cell_len(name) for name in names), default=0)
    for group, name in zip(groups, names, strict=True):
        yield from _verdict_row(
            group[0], name, page, status_width=status_width, name_width=name_width
        )
        if len(group) > 1:
            inputs = [page.safe(verdict.input) for verdict in group]
            words = [*(f"{each}," for each in inputs[:-1]), inputs[-1]]
            indent = " " * (page.indent + status_width + 4)
            yield from map(Text, fill(words, page.prose_width, indent=indent))
    if len(verdicts) > _FEW and passes:
        row = Text(" " * page.indent)
        row.append("pass".ljust(status_width), page.style("ok"))
        yield row.append(f"  {'all ' if not listed else ''}{plural(passes, 'gradient')}")


def _alike(verdicts: Sequence[Verdict]) -> list[list[Verdict]]:
    """Put together what says the same of one output, where that is said often, in order."""
    said: dict[tuple[str, str, str | None], list[Verdict]] = {}
    for verdict in verdicts:
        said.setdefault((verdict.status, verdict.output, verdict.reason), []).append(verdict)
    return [
        part
        for group in said.values()
        for part in ([group] if len(group) > _MOST_ALIKE else [[verdict] for verdict in group])
    ]


def _pair(group: Sequence[Verdict]) -> str:
    wrt = group[0].input if len(group) == 1 else plural(len(group), "tensor")
    return f"{group[0].output} wrt {wrt}"


def _verdict_row(
    verdict: Verdict, name: str, page: Page, *, status_width: int, name_width: int
) -> Iterator[Text]:
    row = Text(" " * page.indent)
    row.append(verdict.status.ljust(status_width), page.style(_VERDICT_STYLES[verdict.status]))
    row.append(f"  {name}")
    reason = page.safe(verdict.reason or "")
    if not reason:
        yield row
        return
    column = page.indent + status_width + 2 + name_width + 2
    if page.width - column >= _LEAST_REASON_WIDTH:
        first, *rest = wrap(reason, page.width - column)
        yield row.append(" " * (name_width - cell_len(name) + 2) + first)
    else:
        yield row
        column = page.indent + 2
        rest = list(wrap(reason, max(page.width - column, 1)))
    for line in rest:
        yield Text(" " * column + line)


def _ledger(report: Report, page: Page) -> Iterator[Text]:
    """Yield what happened, whether anything is wrong or not."""
    lines = [] if report.ledger is None else ledger_lines(report.ledger)
    if report.ledger is None or not lines:
        return
    yield Text(ledger_title(report.ledger, report.summary), style=page.style("strong"))
    for line in lines:
        told = f"{line.subject}: {line.facts}" if line.subject else line.facts
        style = page.style("warning") if line.unusual else ""
        yield from paragraph(told, page, label="! " if line.unusual else "- ", label_style=style)
    yield Text()


def _figures(report: Report, page: Page) -> Iterator[Text]:
    shown = {key: value for key, value in report.summary.items() if key not in NOT_SHOWN}
    figures = [_figure(key, value) for key, value in shown.items()]
    told = [page.safe(figure) for figure in figures if figure]
    # A comma after all but the last; a figure stays on one line with its name.
    words = [f"{figure}," for figure in told[:-1]] + told[-1:]
    for line in fill(words, page.prose_width - page.indent) if words else ():
        yield Text(" " * page.indent).append(line, page.style("faint"))


def _figure(key: str, value: JSON) -> str:
    """Return a figure of the summary with its name; nothing for one that holds several."""
    name = key.replace("_", " ")
    if value is None or isinstance(value, (Mapping, tuple, list)):
        return ""
    if isinstance(value, bool):
        return f"{name} {'yes' if value else 'no'}"
    if isinstance(value, int) and name.endswith("bytes"):
        return f"{name.removesuffix('bytes')}{byte_count(value)}"
    # A seed is there to be copied.
    if isinstance(value, (int, float)) and not name.endswith("seed"):
        return f"{name} {number(value)}"
    return f"{name} {value}"


def _pointer(findings: Iterable[Finding], page: Page) -> Iterator[Text]:
    """Name the command that explains all that was found, worst first, and the page on line."""
    codes = [each.code for each in findings if catalogue.find(each.code) is not None]
    if codes:
        command = f"gradcheck-suite explain {' '.join(dict.fromkeys(codes))}"
        sentence = f"Why it matters and what to write: {command}"
        yield from paragraph(sentence, page, style=page.style("faint"))
        row = Text(" " * page.indent).append(_CATALOGUE, page.style("faint"))
        if row.cell_len <= page.width:
            yield row


def _conclusion(report: Report, page: Page) -> Iterator[Text]:
    """Yield the verdict on one line, the last; what does not fit beside it stands above."""
    line = page.safe(conclusion(report))
    if cell_len(line) > page.width:
        line, remarks = map(page.safe, verdict_and_remarks(report))
        if remarks:
            yield from paragraph(remarks, page, style=page.style("faint"))
    yield Text(line, style=_conclusion_style(report, page))


def _conclusion_style(report: Report, page: Page) -> str:
    if report.findings:
        return page.style(max(finding.severity for finding in report.findings).value)
    statuses = {verdict.status for verdict in report.verdicts}
    if "fail" in statuses:
        return page.style("error")
    return page.style("ok" if statuses <= {"pass"} and not report.not_covered else "warning")
