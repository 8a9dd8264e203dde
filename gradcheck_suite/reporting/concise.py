"""Write one line for each finding, as editors and grep like it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradcheck_suite.reporting.paths import display_path
from gradcheck_suite.reporting.summary import conclusion
from gradcheck_suite.reporting.text import one_line, visible

if TYPE_CHECKING:
    from gradcheck_suite.findings import Finding, Location, Report

__all__ = ["place", "render", "with_cell"]


def render(report: Report) -> str:
    """Return the report as lines ``path:line:col: CODE [severity] message``, the verdict last."""
    return "".join(f"{line}\n" for line in (*map(_line, report.findings), conclusion(report)))


def place(location: Location) -> str:
    """Return ``path:line:column``, or ``path:line`` where the column is unknown.

    >>> from gradcheck_suite.findings import Location
    >>> place(Location("a.ipynb", 5, 1, cell=3))
    'a.ipynb:cell 3:5:1'
    """
    cell = "" if location.cell is None else f":cell {location.cell}"
    column = "" if location.column is None else f":{location.column}"
    return f"{visible(display_path(location.path))}{cell}:{location.line}{column}"


def with_cell(message: str, location: Location | None) -> str:
    """Return a message for readers that know no cells, which names the cell and the line in it."""
    if location is None or location.cell is None:
        return message
    return f"cell {location.cell}, line {location.line}: {message}"


def _line(finding: Finding) -> str:
    where = f"{place(finding.location)}: " if finding.location is not None else ""
    return f"{where}{visible(finding.code)} [{finding.severity.value}] {one_line(finding.message)}"
