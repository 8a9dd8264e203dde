"""Draw the verdicts of a gradient check, those that need a reader first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.text import Text

from gradcheck_suite.reporting.layout import fill, wrap
from gradcheck_suite.reporting.text import plural

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gradcheck_suite.findings import Verdict
    from gradcheck_suite.reporting.layout import Page

__all__ = ["draw_verdicts"]

# Up to here every verdict has a line of its own; beyond, all passes are one line with their number,
# and so are others of one output with the same reason, if they are more than two.
_FEW = 6
_MOST_ALIKE = 2
_LEAST_REASON_WIDTH = 24
_STYLES = {"fail": "error", "inconclusive": "warning", "not covered": "warning", "pass": "ok"}


def draw_verdicts(verdicts: Sequence[Verdict], page: Page) -> Iterator[Text]:
    """Yield a heading and a line for each verdict, or one line for many that say the same."""
    yield Text("gradients", style=page.style("strong"))
    listed = [verdict for status in _STYLES for verdict in verdicts if verdict.status == status]
    passes = sum(verdict.status == "pass" for verdict in verdicts)
    if len(verdicts) > _FEW:
        listed = [verdict for verdict in listed if verdict.status != "pass"]
    groups = _alike(listed) if len(verdicts) > _FEW else [[verdict] for verdict in listed]
    names = [page.safe(_name(group)) for group in groups]
    status_width = max((len(verdict.status) for verdict in listed), default=0)
    name_width = max((cell_len(name) for name in names), default=0)
    for group, name in zip(groups, names, strict=True):
        yield from _row(group[0], name, page, status_width=status_width, name_width=name_width)
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


def _name(group: Sequence[Verdict]) -> str:
    wrt = group[0].input if len(group) == 1 else plural(len(group), "tensor")
    return f"{group[0].output} wrt {wrt}"


def _row(
    verdict: Verdict, name: str, page: Page, *, status_width: int, name_width: int
) -> Iterator[Text]:
    row = Text(" " * page.indent)
    row.append(verdict.status.ljust(status_width), page.style(_STYLES[verdict.status]))
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
