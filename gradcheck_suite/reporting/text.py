"""Make text safe to print, and numbers easy to read."""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "ColorChoice",
    "byte_count",
    "encodable",
    "number",
    "one_line",
    "plural",
    "ranks_in_words",
    "visible",
]

ColorChoice: TypeAlias = Literal["auto", "always", "never"]

# Control, format (bidi overrides, zero-width), surrogate, line and paragraph separator: what a
# terminal obeys or hides instead of showing.
_UNSHOWN_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_BYTES_PER_UNIT = 1024


def visible(text: str, *, keep_newlines: bool = False) -> str:
    r"""Return ``text`` with every character that a terminal would obey or hide spelled out.

    >>> print(visible("red\x1b[31m"))
    red\x1b[31m
    >>> print(visible("user\u202egnp.exe"))
    user\u202egnp.exe
    """
    if text.isprintable():
        return text
    return "".join(
        _spelled_out(character)
        if unicodedata.category(character) in _UNSHOWN_CATEGORIES
        and not (keep_newlines and character == "\n")
        else character
        for character in text
    )


def one_line(text: str) -> str:
    r"""Return ``text`` on one line: line breaks become spaces, and the rest is made visible.

    >>> one_line("first,\n    second")
    'first, second'
    """
    lines = (line.strip() for line in text.splitlines())
    return visible(" ".join(line for line in lines if line))


def encodable(text: str, encoding: str | None) -> str:
    r"""Return ``text`` with what ``encoding`` cannot express as backslash escapes.

    A stream without an encoding (``None``), such as ``io.StringIO``, holds any text.

    >>> print(encodable("naïve", "ascii"))
    na\xefve
    """
    if encoding is None or text.isascii():
        return text
    try:
        return text.encode(encoding, "backslashreplace").decode(encoding)
    except (LookupError, UnicodeError):
        return text.encode("ascii", "backslashreplace").decode("ascii")


def number(value: float) -> str:
    """Return ``value`` for reading: thousands separators, four significant digits.

    >>> number(1200), number(0.000123456), number(12345.678)
    ('1,200', '0.0001235', '1.235e+04')
    """
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def plural(count: int, noun: str, nouns: str | None = None) -> str:
    """Return ``count`` with its noun in the right number; ``nouns`` is for irregular plurals.

    >>> plural(1, "error"), plural(1200, "time"), plural(2, "entry", "entries")
    ('1 error', '1,200 times', '2 entries')
    """
    return f"{number(count)} {noun if count == 1 else nouns or noun + 's'}"


def byte_count(count: int) -> str:
    """Return a number of bytes in the largest binary unit that keeps it at least one.

    >>> byte_count(512), byte_count(1536), byte_count(3 * 1024**3)
    ('512 bytes', '1.5 KiB', '3.0 GiB')
    """
    if abs(count) < _BYTES_PER_UNIT:
        return plural(count, "byte")
    value = float(count)
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        value /= _BYTES_PER_UNIT
        # A value that would be printed as 1024.0 belongs to the next unit.
        if abs(round(value, 1)) < _BYTES_PER_UNIT:
            return f"{value:.1f} {unit}"
    return f"{value / _BYTES_PER_UNIT:,.1f} PiB"


def _spelled_out(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def ranks_in_words(ranks: Iterable[int]) -> str:
    """Return the numbers of processes as text, neighbours as a span.

    >>> ranks_in_words([2]), ranks_in_words([0, 1]), ranks_in_words([0, 1, 2, 5])
    ('rank 2', 'ranks 0 and 1', 'ranks 0-2 and 5')
    """
    spans: list[list[int]] = []
    for rank in sorted(ranks):
        if spans and rank == spans[-1][-1] + 1:
            spans[-1].append(rank)
        else:
            spans.append([rank])
    words = [
        word
        for span in spans
        for word in (map(str, span) if len(span) in {1, 2} else [f"{span[0]}-{span[-1]}"])
    ]
    noun = "rank" if words == [str(spans[0][0])] else "ranks"
    return f"{noun} {' and '.join(filter(None, (', '.join(words[:-1]), words[-1])))}"
