"""Show catalogue entries: explanations and the list of rules, for people and for programs.

The same texts come out as plain text, in colour, and as Markdown. Only a terminal that shows
colour needs rich, so nothing here imports it before that is known.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import textwrap
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Literal, TextIO, TypeAlias

from gradcheck_suite import catalogue
from gradcheck_suite.errors import UsageError
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rich.console import RenderableType

    from gradcheck_suite.catalogue import Entry, Family
    from gradcheck_suite.findings import JSON
    from gradcheck_suite.reporting.text import ColorChoice

__all__ = [
    "RULES_FORMATS",
    "RulesFormat",
    "entries_named",
    "explain_markdown",
    "explain_renderables",
    "explain_text",
    "places_of",
    "print_explanation",
    "print_rules",
    "rules_json",
    "rules_text",
]

RulesFormat: TypeAlias = Literal["table", "json"]
RULES_FORMATS: tuple[RulesFormat, ...] = ("table", "json")

_PLAIN_WIDTH = 80
# Longer lines of prose are hard to read.
_WIDEST = 100
_NARROWEST = 40
_INDENT = "    "
_BELOW = " " * 10
_BETWEEN = "\n\n"
_SPAN = "`"
# Stands for a space inside a code span, where textwrap would otherwise break the line. Longer
# spans, which quote messages, may be broken, so that every line fits.
_UNBROKEN = "\0"
_LONGEST_UNBROKEN = 36

_HEADING = "bold underline"
_CODE = "cyan"
_STYLES = {
    Severity.ERROR: "bold red",
    Severity.WARNING: "bold yellow",
    Severity.NOTE: "bold cyan",
}
# The sixteen colours that every terminal has, and whose shades its user has chosen.
_THEME = "ansi_dark"


@dataclass(frozen=True, slots=True)
class _Block:
    """Paragraphs of Markdown, or source if ``language`` says in which language."""

    text: str
    language: Literal["console", "python", "toml"] | None = None


@dataclass(frozen=True, slots=True)
class _Section:
    """One part of an explanation: a heading and what stands below it."""

    heading: str
    blocks: tuple[_Block, ...]


def entries_named(names: Iterable[str]) -> tuple[Entry, ...]:
    """Return the entries with these codes or slugs.

    Raises:
        UsageError: a name is unknown; the message has the nearest that are known.
    """
    found = []
    for name in names:
        entry = catalogue.find(name)
        if entry is None:
            raise UsageError(_unknown(name))
        found.append(entry)
    return tuple(found)


def explain_text(entry: Entry, *, width: int = _PLAIN_WIDTH) -> str:
    """Return the explanation of one entry as plain text with a final newline.

    Prose is broken at ``width`` columns. Source is indented by four columns and never broken.
    """
    lines = [_name(entry), *_wrapped(entry.title, width), *_wrapped(_facts(entry), width)]
    for section in _sections(entry):
        lines += ["", section.heading]
        for block in section.blocks:
            lines.append("")
            if block.language is None:
                lines += _wrapped(block.text, width)
            else:
                lines += textwrap.indent(block.text, _INDENT).splitlines()
    return "\n".join(lines) + "\n"


def explain_renderables(entry: Entry, *, width: int = _PLAIN_WIDTH) -> Iterator[RenderableType]:
    """Yield what rich prints for one entry on a console that is ``width`` columns wide.

    Printed without colour and without wrapping, it is what ``explain_text`` returns.
    """
    from rich.text import Text  # noqa: PLC0415 - needed by colour terminals alone

    yield Text(_name(entry), "bold")
    yield from map(Text, _wrapped(entry.title, width))
    first, *others = _wrapped(_facts(entry), width)
    facts = Text(first)
    facts.stylize(_STYLES[entry.severity], 0, len(entry.severity.value))
    yield facts
    yield from map(Text, others)
    for section in _sections(entry):
        yield Text()
        yield Text(section.heading, _HEADING)
        for block in section.blocks:
            yield Text()
            yield from _drawn(block, width)


def explain_markdown(entry: Entry, *, level: int = 2) -> str:
    """Return the explanation of one entry as Markdown whose heading is of ``level``."""
    parts = [f"{'#' * level} {_name(entry)}", f"**{entry.title}**", _facts(entry)]
    for section in _sections(entry):
        parts.append(f"{'#' * (level + 1)} {section.heading}")
        for block in section.blocks:
            if block.language is None:
                parts.append(block.text)
            else:
                parts.append(f"```{block.language}\n{block.text.rstrip()}\n```")
    return "\n\n".join(parts) + "\n"


def print_explanation(
    names: Sequence[str],
    stream: TextIO,
    *,
    color: ColorChoice = "auto",
) -> None:
    """Write the explanations of these codes or slugs to ``stream`` and flush it.

    "auto" colours a terminal that can show it and heeds ``NO_COLOR`` and ``FORCE_COLOR``. Into a
    pipe or a file goes plain text of 80 columns, or as many as ``COLUMNS`` says. Nothing is written
    if a name is unknown.

    Raises:
        UsageError: a name is unknown; the message has the nearest that are known.
        OSError: ``stream`` cannot be written; ``BrokenPipeError`` if its reader has gone.
    """
    entries = entries_named(names)
    width = _columns(stream)
    if color == "always" or (color == "auto" and _shows_color(stream)):
        _print_in_color(entries, stream, width)
    else:
        stream.write(_BETWEEN.join(explain_text(entry, width=width) for entry in entries))
    stream.flush()


def places_of(entry: Entry) -> str:
    """Return in a few words where the mistake can be found.

    >>> places_of(catalogue.MISSING_ZERO_GRAD)
    'source, run time'
    """
    places = (
        ("source", entry.in_source),
        ("run time", entry.at_run_time),
        ("planned", entry.planned),
    )
    return ", ".join(place for place, is_one in places if is_one)


def rules_text(entries: Sequence[Entry], *, width: int = _PLAIN_WIDTH) -> str:
    """Return the entries as a list by family, two lines for each, with a final newline.

    The columns are code, slug, highest severity, where the mistake can be found, and whether a
    machine can correct it; the second line is the title. Where ``width`` has no room for them, all
    but code and slug go to a line of their own.
    """
    width = max(_NARROWEST, width)
    slug_width = max((len(entry.slug) for entry in entries), default=0)
    rows = {entry.code: _row(entry, slug_width) for entry in entries}
    has_room = max(map(len, rows.values()), default=0) <= width
    blocks = []
    for family in catalogue.FAMILIES:
        belonging = [entry for entry in entries if _belongs(entry, family)]
        if not belonging:
            continue
        lines = textwrap.wrap(f"{family.title} ({family.name})", width, break_on_hyphens=False)
        for entry in belonging:
            if has_room:
                lines.append(rows[entry.code])
            else:
                lines.append(f"  {entry.code}  {entry.slug}")
                lines.append(f"{_BELOW}{_found(entry)}".rstrip())
            lines += textwrap.wrap(
                entry.title, width, initial_indent=_BELOW, subsequent_indent=_BELOW
            )
        blocks.append("\n".join(lines) + "\n")
    return "\n".join(blocks)


def rules_json(entries: Iterable[Entry]) -> str:
    """Return the entries as a JSON list of objects with every field, and a final newline."""
    rows: list[JSON] = []
    for entry in entries:
        family = next(known for known in catalogue.FAMILIES if _belongs(entry, known))
        row = {**asdict(entry), "severity": entry.severity.value, "planned": entry.planned}
        rows.append({**row, "family": family.name})
    return json.dumps(rows, indent=2) + "\n"


def print_rules(entries: Sequence[Entry], output_format: RulesFormat, stream: TextIO) -> None:
    """Write a list of entries to ``stream`` and flush it.

    Raises:
        OSError: ``stream`` cannot be written; ``BrokenPipeError`` if its reader has gone.
    """
    if output_format == "json":
        stream.write(rules_json(entries))
    else:
        stream.write(rules_text(entries, width=_columns(stream)))
    stream.flush()


def _sections(entry: Entry) -> Iterator[_Section]:
    yield _Section("What it does", (_Block(entry.what),))
    yield _Section("Why it is bad", (_Block(entry.why),))
    yield _Section("Example", (_Block(entry.example, "python"),))
    yield _Section("Use instead", (_Block(entry.instead, "python"),))
    yield _Section("How it is detected", (_Block(entry.detection),))
    at_run_time = _silenced_at_run_time(entry) if entry.at_run_time else ()
    if entry.in_source:
        yield _Section(
            "How to silence it",
            (
                _Block(f"On one line of source, with a comment: `# noqa: {entry.code}`"),
                _Block("In every file that is linted, in `pyproject.toml`:"),
                _Block(f'[tool.gradcheck-suite.lint]\nignore = ["{entry.code}"]\n', "toml"),
                *at_run_time,
            ),
        )
    elif at_run_time:
        yield _Section("How to silence it", at_run_time)


def _silenced_at_run_time(entry: Entry) -> tuple[_Block, ...]:
    return (
        _Block(
            "Where an audit finds it, with a comment on the line that it names, which silences the "
            f"linter there as well: `# gradcheck: ignore[{entry.code}]`; or in the whole run:"
        ),
        _Block(f"gradcheck-suite audit --ignore {entry.code} train.py\n", "console"),
    )


def _name(entry: Entry) -> str:
    return f"{entry.code} {entry.slug}"


def _facts(entry: Entry) -> str:
    if entry.planned:
        return f"{entry.severity.value}, planned: nothing finds it yet"
    places = [
        place
        for place, is_one in (("in source", entry.in_source), ("at run time", entry.at_run_time))
        if is_one
    ]
    fix = ", can be fixed by machine" if entry.fixable else ""
    return f"{entry.severity.value}, found {' and '.join(places)}{fix}"


def _row(entry: Entry, slug_width: int) -> str:
    return f"  {entry.code}  {entry.slug:<{slug_width}}  {_found(entry)}".rstrip()


def _found(entry: Entry) -> str:
    fix = "fix" if entry.fixable else ""
    return f"{entry.severity.value:<7}  {places_of(entry):<16}  {fix}"


def _belongs(entry: Entry, family: Family) -> bool:
    return entry.code.startswith(family.prefix)


def _unknown(name: str) -> str:
    near = catalogue.suggest(name)
    question = f"did you mean {_alternatives(near)}? " if near else ""
    return f"no rule has the code or name {name!r}; {question}`rules` lists them all"


def _alternatives(names: Sequence[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last


def _wrapped(text: str, width: int) -> Iterator[str]:
    """Break Markdown paragraphs into lines, but not inside a code span unless it is long."""
    for number, part in enumerate(text.split("\n\n")):
        if number:
            yield ""
        pieces = part.split(_SPAN)
        pieces[1::2] = [
            piece.replace(" ", _UNBROKEN) if len(piece) <= _LONGEST_UNBROKEN else piece
            for piece in pieces[1::2]
        ]
        for line in textwrap.wrap(
            _SPAN.join(pieces),
            max(_NARROWEST, min(width, _WIDEST)),
            break_long_words=False,
            break_on_hyphens=False,
        ):
            yield line.replace(_UNBROKEN, " ")


def _drawn(block: _Block, width: int) -> Iterator[RenderableType]:
    from rich.syntax import Syntax  # noqa: PLC0415 - needed by colour terminals alone
    from rich.text import Text  # noqa: PLC0415 - as above

    if block.language is None:
        in_span = False
        for line in _wrapped(block.text, width):
            row = Text()
            for piece in re.split(f"({_SPAN})", line):
                row.append(piece, _CODE if in_span or piece == _SPAN else "")
                in_span ^= piece == _SPAN
            yield row
        return
    source = Syntax(block.text, block.language, theme=_THEME, background_color="default")
    for row in source.highlight(block.text.rstrip("\n")).split("\n"):
        if row.plain:
            row.pad_left(len(_INDENT))
        yield row


def _print_in_color(entries: Sequence[Entry], stream: TextIO, width: int) -> None:
    from rich.console import Console  # noqa: PLC0415 - needed by colour terminals alone

    console = Console(file=stream, force_terminal=True, width=width, highlight=False)
    # Where the reader has gone, rich would end the process with a status of its own.
    with console.capture() as drawn:
        for number, entry in enumerate(entries):
            if number:
                console.out(_BETWEEN, end="")
            for renderable in explain_renderables(entry, width=width):
                console.print(renderable, soft_wrap=True)
    stream.write(drawn.get())


def _shows_color(stream: TextIO) -> bool:
    """Return whether ``stream`` is a terminal that shows colour, and its user has not forbidden it.

    ``FORCE_COLOR`` makes a terminal of whatever it is: https://force-color.org.
    """
    if os.environ.get("NO_COLOR") or os.environ.get("TERM", "").lower() in {"dumb", "unknown"}:
        return False
    return bool(os.environ.get("FORCE_COLOR")) or stream.isatty()


def _columns(stream: TextIO) -> int:
    """Return how many columns a terminal has; a pipe or file gets as many as print well.

    ``COLUMNS`` decides for both where it is set.
    """
    if stream.isatty():
        return shutil.get_terminal_size().columns
    said = os.environ.get("COLUMNS", "")
    return int(said) if said.isdecimal() and int(said) else _PLAIN_WIDTH
