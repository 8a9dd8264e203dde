"""Write a report as JUnit XML, which continuous integration shows as tests."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gradcheck_suite.reporting.concise import place
from gradcheck_suite.reporting.paths import display_path
from gradcheck_suite.reporting.source import SourceLines
from gradcheck_suite.reporting.text import one_line, visible
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_suite.findings import Finding, Report, Verdict

__all__ = ["render"]

# What XML 1.0 can't hold in any spelling.
_NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "\n": "&#10;"}


def render(report: Report) -> str:
    """Return the report as one test suite, in ASCII.

    An error or a warning is a test that failed, a note one that was skipped. So is each verdict
    that is neither pass nor fail, and each thing that was not covered. A report with nothing to
    tell is one test that passed.
    """
    sources = SourceLines()
    cases = [case for finding in report.findings for case in _finding(finding, sources)]
    cases.extend(case for verdict in report.verdicts for case in _verdict(verdict))
    for reason in report.not_covered:
        cases.extend(_case("not covered", reason, _skipped(reason)))
    if not cases:
        cases.extend(_case(report.tool, "nothing found", None))
    failures = sum(line.lstrip().startswith("<failure") for line in cases)
    skipped = sum(line.lstrip().startswith("<skipped") for line in cases)
    tests = sum(line.lstrip().startswith("<testcase") for line in cases)
    counts = f'tests="{tests}" failures="{failures}" errors="0"'
    lines = [
        '<?xml version="1.0" encoding="utf-8"?>',
        f"<testsuites name={_quoted(report.tool)} {counts}>",
        f'  <testsuite name={_quoted(report.tool)} {counts} skipped="{skipped}">',
        *(f"    {line}" for line in cases),
        "  </testsuite>",
        "</testsuites>",
    ]
    return "\n".join(lines) + "\n"


def _finding(finding: Finding, sources: SourceLines) -> Iterator[str]:
    where = "" if finding.location is None else place(finding.location)
    path = finding.rule if finding.location is None else display_path(finding.location.path)
    body = [finding.message]
    body.extend(f"{related.message}: {place(related.location)}" for related in finding.related)
    if finding.hint:
        body.append(f"help: {finding.hint}")
    if where:
        body.append(f"at {where}")
    if finding.severity is Severity.NOTE:
        inner = _skipped("\n".join(body))
    else:
        inner = _failure(finding.severity.value, finding.message, "\n".join(body))
    name = f"{finding.code} {finding.rule}" + (f" {where}" if where else "")
    line = None if finding.location is None else sources.in_file(finding.location).line
    yield from _case(path, name, inner, line=line)


def _verdict(verdict: Verdict) -> Iterator[str]:
    name = f"gradient of {verdict.output} with respect to {verdict.input}"
    reason = verdict.reason or verdict.status
    inner = None
    if verdict.status == "fail":
        inner = _failure("fail", reason, reason)
    elif verdict.status != "pass":
        inner = _skipped(f"{verdict.status}: {reason}")
    yield from _case("gradients", name, inner)


def _case(group: str, name: str, inner: str | None, *, line: int | None = None) -> Iterator[str]:
    number = "" if line is None else f' line="{line}"'
    head = f"<testcase classname={_quoted(group)} name={_quoted(name)}{number}"
    if inner is None:
        yield f"{head}/>"
    else:
        yield f"{head}>"
        yield f"  {inner}"
        yield "</testcase>"


def _failure(kind: str, message: str, body: str) -> str:
    return f"<failure type={_quoted(kind)} message={_quoted(message)}>{_text(body)}</failure>"


def _skipped(message: str) -> str:
    return f"<skipped message={_quoted(message)}/>"


def _quoted(text: str) -> str:
    return f'"{_escaped(one_line(text))}"'


def _text(text: str) -> str:
    return _escaped(visible(text, keep_newlines=True))


def _escaped(text: str) -> str:
    known = "".join(_ENTITIES.get(character, character) for character in text)
    clean = _NOT_IN_XML.sub("\ufffd", known)
    return clean.encode("ascii", "xmlcharrefreplace").decode("ascii")
