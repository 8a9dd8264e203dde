"""Write findings as GitHub Actions workflow commands, which mark the lines of a pull request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradcheck_suite.reporting.concise import place, with_cell
from gradcheck_suite.reporting.paths import display_path
from gradcheck_suite.reporting.source import SourceLines
from gradcheck_suite.reporting.text import visible
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_suite.findings import Finding, Location, Report

__all__ = ["render"]

_COMMANDS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "notice"}


def render(report: Report) -> str:
    """Return one workflow command for each finding and each thing that was not covered.

    Escapes are those of the runner: ``%`` and line breaks in the message, ``:`` and ``,`` as well
    in a property; other control characters are spelled out. Nothing in a report can therefore
    start a second command.
    """
    sources = SourceLines()
    commands = [_command(finding, sources) for finding in report.findings]
    commands.extend(f"::notice title=not covered::{_data(reason)}" for reason in report.not_covered)
    return "".join(f"{command}\n" for command in commands)


def _command(finding: Finding, sources: SourceLines) -> str:
    properties: dict[str, str] = {}
    if finding.location is not None:
        properties.update(_position(sources.in_file(finding.location)))
    properties["title"] = f"{finding.code} {finding.rule}"
    settings = ",".join(f"{key}={_property(value)}" for key, value in properties.items())
    return f"::{_COMMANDS[finding.severity]} {settings}::{_data(_body(finding))}"


def _position(location: Location) -> Iterator[tuple[str, str]]:
    yield "file", display_path(location.path)
    yield "line", str(location.line)
    if location.end_line is not None:
        yield "endLine", str(location.end_line)
    # GitHub refuses columns for an annotation of several lines.
    if location.column is not None and location.end_line in {None, location.line}:
        yield "col", str(location.column)
        if location.end_column is not None:
            yield "endColumn", str(location.end_column)


def _body(finding: Finding) -> str:
    lines = [with_cell(finding.message, finding.location)]
    lines.extend(f"{related.message}: {place(related.location)}" for related in finding.related)
    if finding.hint:
        lines.append(f"help: {finding.hint}")
    return "\n".join(lines)


def _data(text: str) -> str:
    shown = visible(text.replace("\r\n", "\n"), keep_newlines=True)
    return shown.replace("%", "%25").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
