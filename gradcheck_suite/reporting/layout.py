"""The page that a report for people is laid out on: its width, its signs, its styles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.text import Text

from gradcheck_suite.reporting.text import encodable, one_line, visible

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["Glyphs", "Page", "fill", "paragraph", "wrap"]

# Longer lines of prose are hard to read; source and tables may be as wide as the terminal.
_WIDEST_PROSE = 100
_NARROWEST = 20

# The sixteen colours that every theme defines. Faint is "dim", because some themes make "bright
# black" the colour of the background.
_STYLES = {
    "error": "bold red",
    "warning": "bold yellow",
    "note": "bold cyan",
    "ok": "bold green",
    "help": "bold green",
    "related": "bright_blue",
    "strong": "bold",
    "code": "bold",
    "gutter": "dim",
    "faint": "dim",
}


@dataclass(frozen=True, slots=True)
class Glyphs:
    """The signs that are drawn between texts."""

    bar: str
    ellipsis: str


UNICODE = Glyphs(bar="\N{BOX DRAWINGS LIGHT VERTICAL}", ellipsis="\N{HORIZONTAL ELLIPSIS}")
ASCII = Glyphs(bar="|", ellipsis="...")


@dataclass(frozen=True, slots=True)
class Page:
    """How wide the page is, how far its body is indented, and what its reader can print.

    ``encoding`` None stands for a stream that takes any text.
    """

    width: int
    encoding: str | None = None
    glyphs: Glyphs = UNICODE
    indent: int = 2

    @classmethod
    def of(cls, width: int, *, encoding: str | None = None) -> Page:
        """Return a page of ``width`` cells with the signs that ``encoding`` can express."""
        signs = UNICODE.bar + UNICODE.ellipsis
        glyphs = UNICODE if encodable(signs, encoding) == signs else ASCII
        return cls(width=max(width, _NARROWEST), encoding=encoding, glyphs=glyphs)

    @property
    def prose_width(self) -> int:
        """The width of running text, in cells."""
        return min(self.width, _WIDEST_PROSE)

    def style(self, name: str) -> str:
        """Return the rich style for a kind of text."""
        return _STYLES[name]

    def safe(self, text: str, *, lines: bool = False) -> str:
        """Return ``text`` such that it can be printed here; on one line, or with its ``lines``."""
        shown = visible(text, keep_newlines=True) if lines else one_line(text)
        return encodable(shown, self.encoding)


def wrap(text: str, width: int) -> Iterator[str]:
    """Yield ``text`` in lines of at most ``width`` cells, broken at spaces.

    A word that is wider than a line stays whole, so that paths can be copied. Spaces at the start
    of ``text`` are repeated on each line, so that code keeps its indentation.
    """
    body = text.lstrip(" ")
    yield from fill(body.split(" "), width, indent=text[: len(text) - len(body)])


def fill(words: Iterable[str], width: int, *, indent: str = "") -> Iterator[str]:
    """Yield ``words``, which are not broken, in lines of at most ``width`` cells."""
    line = ""
    for word in words:
        longer = f"{line} {word}" if line else indent + word
        if line and cell_len(longer) > width:
            yield line
            line = indent + word
        else:
            line = longer
    yield line


def paragraph(
    text: str, page: Page, *, label: str = "", label_style: str = "", style: str = ""
) -> Iterator[Text]:
    """Yield the lines of ``text`` in the page's body, indented by a ``label`` before the first.

    What stands between backticks is set apart as code. A line that is indented is code as well,
    and stays whole, so that it can be copied.
    """
    hang = " " * cell_len(label)
    lead = Text(" " * page.indent).append(label, label_style)
    for part in page.safe(text, lines=True).split("\n"):
        # Quotes that do not pair up quote nothing.
        quotes = part.count("`") % 2 == 0
        inside = False
        width = max(page.prose_width - lead.cell_len, _NARROWEST // 2)
        for line in (part,) if part.startswith(" ") else wrap(part, width):
            for index, piece in enumerate(line.split("`")):
                if index > 0:
                    lead.append("`", style)
                    inside ^= quotes
                lead.append(piece, page.style("code") if inside else style)
            yield lead
            lead = Text(" " * page.indent + hang)
