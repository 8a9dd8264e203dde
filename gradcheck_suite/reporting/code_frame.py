"""Draw a few lines of source with marks under the places that matter."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.text import Text

from gradcheck_suite.findings import Location
from gradcheck_suite.reporting.layout import wrap
from gradcheck_suite.reporting.text import encodable, visible

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gradcheck_suite.reporting.layout import Page

__all__ = ["Mark", "draw_code_frame"]

_TAB = " " * 4
_LEAST_CODE_WIDTH = 12
_LEAST_LABEL_WIDTH = 16
# Code points that are looked at on either side of a mark: more than any screen shows.
_REACH = 1000


@dataclass(frozen=True, slots=True)
class Mark:
    """A place to underline with ``sign``; its ``label`` is written beside the underline."""

    location: Location
    sign: str
    style: str
    label: str = ""


@dataclass(frozen=True, slots=True)
class _Strip:
    """The part of a line that is shown, and the cell where each of its code points starts.

    ``first`` is the code point of the line that ``cells[0]`` is about; the last of ``cells`` is
    where the code ends.
    """

    text: str
    first: int
    cells: tuple[int, ...]

    def cell(self, column: int) -> int:
        """Return the cell of the code point ``column``, or of the nearest that is shown."""
        return self.cells[min(max(column - self.first, 0), len(self.cells) - 1)]


def draw_code_frame(
    lines: Sequence[str], marks: Sequence[Mark], *, around: int, digits: int, page: Page
) -> Iterator[Text]:
    """Yield the line of the first mark and ``around`` more on either side, with all ``marks``.

    Every mark must be on one of these lines, and on a line that exists. Blank lines at the edges
    are left out. Line numbers take ``digits`` cells. A line wider than the page is cut down to
    what lies about its mark.
    """
    marked = {mark.location.line for mark in marks}
    centre = marks[0].location.line
    first, last = max(centre - around, 1), min(centre + around, len(lines))
    while first not in marked and not lines[first - 1].strip():
        first += 1
    while last not in marked and not lines[last - 1].strip():
        last -= 1
    room = max(page.width - page.indent - digits - len(" | "), _LEAST_CODE_WIDTH)
    for number in range(first, last + 1):
        line = lines[number - 1].rstrip()
        here = [mark for mark in marks if mark.location.line == number]
        strip = _strip(line, _columns(line, here[0].location)[0] if here else 0, room, page)
        yield _gutter(str(number), digits, page).append(f" {strip.text}" if strip.text else "")
        for mark in here:
            for under in _underline(strip, line, mark, room, page):
                yield _gutter("", digits, page).append(" ").append_text(under)


def _gutter(number: str, digits: int, page: Page) -> Text:
    row = Text(" " * page.indent, no_wrap=True)
    return row.append(f"{number:>{digits}} {page.glyphs.bar}", page.style("gutter"))


def _columns(line: str, place: Location) -> tuple[int, int]:
    """Return the marked code points of ``line``, counted from 0: the first, and past the last.

    Without a column the whole line is meant; a range that runs on ends with its first line.
    """
    length = len(line)
    if place.column is None or place.column < 1:
        return length - len(line.lstrip()), length
    start = min(place.column - 1, length)
    if place.end_line is not None and place.end_line > place.line:
        return start, length
    if place.end_column is None:
        return start, start + 1
    return start, min(place.end_column - 1, length)


def _strip(line: str, anchor: int, room: int, page: Page) -> _Strip:
    """Cut ``line`` down to ``room`` cells such that the code point ``anchor`` is among them."""
    start, stop = max(anchor - _REACH, 0), min(anchor + _REACH, len(line))
    pieces = [_printable(character, page) for character in line[start:stop]]
    widths = [cell_len(piece) for piece in pieces]
    dots = page.glyphs.ellipsis
    left = 0
    if start > 0 or sum(widths) > room:
        before = sum(widths[: anchor - start])
        # A mark in the last third of the page would lack its end and what follows it.
        surplus = before - room // 3 if start > 0 or before > room * 2 // 3 else 0
        while surplus > 0:
            surplus -= widths[left]
            left += 1
    lead = dots if start + left > 0 else ""
    right, used = left, cell_len(lead)
    while right < len(pieces) and used + widths[right] <= room:
        used += widths[right]
        right += 1
    tail = ""
    if start + right < len(line):
        tail = dots
        while right > left and used + cell_len(dots) > room:
            right -= 1
            used -= widths[right]
    return _Strip(
        text=lead + "".join(pieces[left:right]) + tail,
        first=start + left,
        cells=tuple(accumulate(widths[left:right], initial=cell_len(lead))),
    )


def _printable(character: str, page: Page) -> str:
    return _TAB if character == "\t" else encodable(visible(character), page.encoding)


def _underline(strip: _Strip, line: str, mark: Mark, room: int, page: Page) -> Iterator[Text]:
    first, past = _columns(line, mark.location)
    start = min(strip.cell(first), room - 1)
    end = max(strip.cell(past), start + 1)
    under = Text(" " * start, no_wrap=True).append(mark.sign * (end - start), mark.style)
    label = page.safe(mark.label)
    if label and end + 1 + cell_len(label) <= room:
        yield under.append(f" {label}", mark.style)
        return
    yield under
    indent = start if room - start >= _LEAST_LABEL_WIDTH else 0
    for part in wrap(label, room - indent) if label else ():
        yield Text(" " * indent, no_wrap=True).append(part, mark.style)
