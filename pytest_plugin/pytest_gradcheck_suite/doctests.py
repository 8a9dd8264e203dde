"""Place what is found inside a doctest in the file that the doctest was read from.

An example of a doctest is compiled as a file of its own, ``<doctest mymodule.train[3]>``, whose
first line is the example's.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import doctest

    import pytest

    from gradcheck_suite.findings import Location, Report

__all__ = ["placed_in_docstrings"]

_EXAMPLE = re.compile(r"<doctest (?P<name>.+?)\[(?P<number>\d+)\]>")
_PLACE = re.compile(rf"{_EXAMPLE.pattern}:(?P<line>\d+)")
_PROMPT = len(">>> ")


def placed_in_docstrings(item: pytest.Item, report: Report) -> Report:
    """Return the report with the lines of a doctest's examples as lines of its file.

    The report comes back as it is for other tests, and for a doctest whose line nobody knows.
    """
    test: doctest.DocTest | None = getattr(item, "dtest", None)
    if test is None or test.filename is None or test.lineno is None:
        return report
    from gradcheck_suite.reporting.paths import display_path  # noqa: PLC0415 - for doctests

    file, start, examples, name = test.filename, test.lineno, test.examples, test.name

    def example_of(match: re.Match[str]) -> doctest.Example | None:
        number = int(match["number"])
        return examples[number] if match["name"] == name and number < len(examples) else None

    def placed(location: Location) -> Location:
        match = _EXAMPLE.fullmatch(location.path)
        example = match and example_of(match)
        if not example:
            return location
        lines, columns = start + example.lineno, example.indent + _PROMPT
        return replace(
            location,
            path=file,
            line=location.line + lines,
            column=_moved(location.column, columns),
            end_line=_moved(location.end_line, lines),
            end_column=_moved(location.end_column, columns),
        )

    def told(match: re.Match[str]) -> str:
        example = example_of(match)
        if example is None:
            return match[0]
        return f"{display_path(file)}:{start + example.lineno + int(match['line'])}"

    return replace(
        report,
        findings=tuple(
            replace(
                finding,
                message=_PLACE.sub(told, finding.message),
                location=finding.location and placed(finding.location),
                related=tuple(
                    replace(related, location=placed(related.location))
                    for related in finding.related
                ),
                hint=finding.hint and _PLACE.sub(told, finding.hint),
                evidence={
                    key: _PLACE.sub(told, value) if isinstance(value, str) else value
                    for key, value in finding.evidence.items()
                },
            )
            for finding in report.findings
        ),
        not_covered=tuple(_PLACE.sub(told, line) for line in report.not_covered),
    )


def _moved(number: int | None, by: int) -> int | None:
    return None if number is None else number + by
