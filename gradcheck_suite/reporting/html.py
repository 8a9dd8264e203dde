"""Write a report as one page that opens from disk: no script, no request, every name escaped."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from gradcheck_suite import catalogue
from gradcheck_suite._addresses import page_of
from gradcheck_suite.reporting.concise import place
from gradcheck_suite.reporting.ledger import ledger_lines, ledger_title
from gradcheck_suite.reporting.source import SourceLines
from gradcheck_suite.reporting.summary import COVERED, NOT_SHOWN, conclusion, sentences_covered
from gradcheck_suite.reporting.text import byte_count, number, one_line, plural, visible
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from gradcheck_suite.findings import JSON, Finding, Location, Related, Report, Verdict

__all__ = ["ledger_fragment", "render", "report_fragment"]

_LINES_AROUND = 3
# Up to here the passes are shown at once; beyond, they wait to be unfolded.
_FEW = 12
_STATUS_ORDER = ("fail", "inconclusive", "not covered", "pass")


def render(report: Report) -> str:
    """Return the report as a self-contained HTML 5 document in UTF-8.

    The page has a light and a dark form, and is readable when printed. Characters that a browser
    would obey or hide are spelled out.
    """
    title = _text(conclusion(report))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        f"<title>{title}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(_body(report))
        + "\n</main>\n</body>\n</html>\n"
    )


def report_fragment(report: Report) -> str:
    """Return the report as an element that keeps its style to itself, for a notebook.

    Where a viewer takes styles away, as GitHub does, what is left is headings, prose and tables.
    """
    return _fragment(_body(report))


def ledger_fragment(ledger: Mapping[str, JSON]) -> str:
    """Return what happened in a run as an element of its own, for a notebook."""
    return _fragment(_ledger(ledger, {}))


def _fragment(body: Iterable[str]) -> str:
    rules = _STYLE.replace(":root", ":scope").replace("body {", ":scope {")
    style = f"<style>@scope (.gradcheck-suite) {{{rules}}}</style>"
    return f'<div class="gradcheck-suite">{style}\n<main>\n' + "\n".join(body) + "\n</main></div>"


def _body(report: Report) -> Iterator[str]:
    sources = SourceLines()
    findings = sorted(report.findings, key=lambda finding: -finding.severity.weight)
    yield f"<h1>{_text(conclusion(report))}</h1>"
    yield from (_finding(finding, sources) for finding in findings if not _is_note(finding))
    yield from _notes([finding for finding in findings if _is_note(finding)], sources)
    yield from _verdicts(report.verdicts)
    yield from _sentences("covered", sentences_covered(report))
    yield from _sentences("not covered", report.not_covered)
    yield from _ledger(report.ledger, report.summary)
    yield from _summary(report.summary)


def _text(text: str) -> str:
    """Return ``text`` on one line, for element content and for attributes."""
    # A lone surrogate has no place in UTF-8; visible() spells it out with the others.
    return escape(one_line(text))


def _prose(text: str) -> str:
    """Return running text in which what stands between backticks is code."""
    paragraphs = []
    for line in visible(text, keep_newlines=True).split("\n"):
        pieces = escape(line).split("`")
        if len(pieces) % 2 == 0:  # quotes that do not pair up quote nothing
            pieces = ["`".join(pieces)]
        paragraphs.append(
            "".join(f"<code>{p}</code>" if i % 2 else p for i, p in enumerate(pieces))
        )
    return "<br>".join(paragraphs)


def _is_note(finding: Finding) -> bool:
    return finding.severity is Severity.NOTE


def _notes(notes: Sequence[Finding], sources: SourceLines) -> Iterator[str]:
    """Yield the notes, folded where there are several: they must not hide what is wrong."""
    drawn = "\n".join(_finding(note, sources) for note in notes)
    if len(notes) > 1:
        yield _details(plural(len(notes), "note"), drawn)
    elif notes:
        yield drawn


def _finding(finding: Finding, sources: SourceLines) -> str:
    severity = finding.severity.value
    entry = catalogue.find(finding.code)
    name = f'{_text(finding.code)} <span class="rule">{_text(finding.rule)}</span>'
    parts = [
        f'<section class="finding {severity}">',
        f'<h2><span class="badge">{severity}</span> {name}{_where(finding.location)}</h2>',
        f"<p>{_prose(finding.message)}</p>",
    ]
    if finding.location is not None:
        parts.append(_frame(finding.location, sources))
    parts += [_related(related, sources) for related in finding.related]
    if finding.hint:
        parts.append(f'<p class="hint"><b>help</b> {_prose(finding.hint)}</p>')
    if finding.evidence:
        parts.append(_details("evidence", _figures(finding.evidence)))
    if entry is not None:
        more = f'<p><a href="{page_of(entry.code)}">what {entry.code} is, and what to write</a></p>'
        why = f"<p>{_prose(entry.why)}</p>"
        parts.append(_details(f"why {entry.code} matters", why + more))
    parts.append("</section>")
    return "\n".join(part for part in parts if part)


def _ledger(ledger: Mapping[str, JSON] | None, summary: Mapping[str, JSON]) -> Iterator[str]:
    lines = [] if ledger is None else ledger_lines(ledger)
    if ledger is None or not lines:
        return
    yield f"<h2>{ledger_title(ledger, summary)}</h2>"
    yield "<table>"
    for line in lines:
        kind = ' class="unusual"' if line.unusual else ""
        yield f"<tr{kind}><th>{_text(line.subject)}</th><td>{_text(line.facts)}</td></tr>"
    yield "</table>"


def _where(location: Location | None) -> str:
    if location is None:
        return ""
    function = location.function
    inside = f" in {_text(function)}" if function and function != "<module>" else ""
    return f' <span class="where">{_text(place(location))}{inside}</span>'


def _related(related: Related, sources: SourceLines) -> str:
    heading = f'<p class="related">{_prose(related.message)}{_where(related.location)}</p>'
    return heading + _frame(related.location, sources)


def _frame(location: Location, sources: SourceLines) -> str:
    """Return the marked line with some lines around it, or nothing where there is no source."""
    lines = sources.lines_of(location)
    if not 1 <= location.line <= len(lines):
        return ""
    first = max(location.line - _LINES_AROUND, 1)
    last = min(location.line + _LINES_AROUND, len(lines))
    rows = []
    for count in range(first, last + 1):
        line = lines[count - 1]
        mark = ' class="marked"' if count == location.line else ""
        code = _marked(line, location) if count == location.line else escape(visible(line))
        rows.append(f"<tr{mark}><th>{count}</th><td>{code or ' '}</td></tr>")
    return f'<table class="source">{"".join(rows)}</table>'


def _marked(line: str, location: Location) -> str:
    column = location.column
    if column is None or not 1 <= column <= len(line):
        return escape(visible(line))
    spans_lines = location.end_line is not None and location.end_line > location.line
    end = location.end_column
    stop = len(line) if spans_lines else max(column, (end or column + 1) - 1)
    before, inside, after = line[: column - 1], line[column - 1 : stop], line[stop:]
    return (
        f"{escape(visible(before))}<mark>{escape(visible(inside))}</mark>{escape(visible(after))}"
    )


def _verdicts(verdicts: Sequence[Verdict]) -> Iterator[str]:
    if not verdicts:
        return
    yield "<h2>gradients</h2>"
    ordered = sorted(verdicts, key=lambda verdict: _STATUS_ORDER.index(verdict.status))
    passes = [verdict for verdict in ordered if verdict.status == "pass"]
    folded = len(ordered) > _FEW
    shown = [v for v in ordered if v.status != "pass"] if folded else ordered
    if shown:
        yield _verdict_table(shown)
    if folded and passes:
        yield _details(f"{plural(len(passes), 'gradient')} passed", _verdict_table(passes))


def _verdict_table(verdicts: Iterable[Verdict]) -> str:
    rows = "".join(
        f'<tr><td class="status {verdict.status.replace(" ", "-")}">{verdict.status}</td>'
        f"<td><code>{_text(verdict.output)}</code></td><td><code>{_text(verdict.input)}</code></td>"
        f"<td>{_prose(verdict.reason or '')}</td></tr>"
        for verdict in verdicts
    )
    head = "<tr><th>verdict</th><th>output</th><th>with respect to</th><th>reason</th></tr>"
    return f'<table class="verdicts"><thead>{head}</thead><tbody>{rows}</tbody></table>'


def _sentences(heading: str, sentences: Sequence[str]) -> Iterator[str]:
    if sentences:
        items = "".join(f"<li>{_prose(sentence)}</li>" for sentence in sentences)
        yield f"<h2>{heading}</h2><ul>{items}</ul>"


def _summary(summary: Mapping[str, JSON]) -> Iterator[str]:
    figures = {key: value for key, value in summary.items() if key not in {*NOT_SHOWN, COVERED}}
    if figures:
        yield f"<h2>figures</h2>{_figures(figures)}"


def _figures(figures: Mapping[str, JSON]) -> str:
    rows = "".join(
        f"<tr><th>{_text(key.replace('_', ' '))}</th><td>{_value(key, value)}</td></tr>"
        for key, value in figures.items()
    )
    return f'<table class="figures">{rows}</table>'


def _value(key: str, value: JSON) -> str:
    if isinstance(value, bool) or value is None:
        return _text(str(value))
    if isinstance(value, int) and key.endswith("bytes"):
        return _text(byte_count(value))
    if isinstance(value, (int, float)):
        return _text(str(value) if key.endswith("seed") else number(value))
    if isinstance(value, (list, tuple)):
        return _text(", ".join(map(str, value)))
    if isinstance(value, str):
        return _prose(value)
    return _text(", ".join(f"{name}: {item}" for name, item in value.items()))


def _details(summary: str, body: str) -> str:
    return f"<details><summary>{_text(summary)}</summary>{body}</details>"


# Colours from the palette of Okabe and Ito, which colour-blind readers can tell apart, darkened
# or lightened to a contrast of at least 4.5 on their background (WCAG 2.2, 1.4.3).
_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #fff; --faint: #5b6470;
  --line: #d5dae0; --well: #f5f7f9; --error: #b03a00; --warning: #7a5900; --note: #005b94;
  --ok: #006b4e; --mark: #ffe3c2; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ed; --paper: #16191d; --faint: #9aa4b0;
  --line: #333a42; --well: #1e2329; --error: #ff9b66; --warning: #f0c33c; --note: #6fc0f5;
  --ok: #4fd0a5; --mark: #5a3a12; } }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 62rem; margin: 0 auto; padding: 1.5rem; }
h1 { font-size: 1.3rem; font-weight: 600; margin: .2rem 0 1.5rem; overflow-wrap: anywhere; }
h2 { font-size: 1rem; margin: 1.5rem 0 .4rem; }
.finding { border-left: 4px solid var(--accent); padding: .1rem 0 .1rem 1rem; margin: 0 0 2rem; }
.finding h2 { margin-top: 0; }
.error { --accent: var(--error); } .warning { --accent: var(--warning); }
.note { --accent: var(--note); }
.badge { color: var(--accent); }
.rule { font-weight: 400; }
.where { color: var(--faint); font: 400 .85rem ui-monospace, monospace; overflow-wrap: anywhere; }
p { margin: .4rem 0; overflow-wrap: anywhere; }
code { font: .9em ui-monospace, monospace; background: var(--well); padding: .05em .25em;
  border-radius: 3px; }
.related { color: var(--note); margin-top: .8rem; }
.hint b { color: var(--ok); }
table { border-collapse: collapse; }
.source { display: block; overflow-x: auto; background: var(--well); border-radius: 6px;
  padding: .4rem 0; font: .85rem/1.45 ui-monospace, monospace; }
.source th { color: var(--faint); font-weight: 400; text-align: right; padding: 0 .8rem;
  user-select: none; }
.source td { white-space: pre; padding-right: 1rem; width: 100%; }
.source .marked { background: color-mix(in srgb, var(--accent, var(--note)) 12%, transparent); }
.source mark { background: var(--mark); color: inherit; border-radius: 3px; }
.verdicts th, .verdicts td, .figures th, .figures td { text-align: left; vertical-align: top;
  padding: .25rem .9rem .25rem 0; border-bottom: 1px solid var(--line); font-size: .9rem; }
.figures th { font-weight: 400; color: var(--faint); }
.status { font-weight: 600; white-space: nowrap; }
.status.pass { color: var(--ok); } .status.fail { color: var(--error); }
.status.inconclusive, .status.not-covered { color: var(--warning); }
details { margin: .5rem 0; } summary { cursor: pointer; color: var(--faint); font-size: .9rem; }
@media print { details::details-content { content-visibility: visible; } }
"""
