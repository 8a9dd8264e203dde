"""How wide text will be, whatever sans-serif font a viewer has."""

from __future__ import annotations

import unicodedata

__all__ = ["shortened", "text_width"]

# Advance widths in hundredths of the font size for the characters from space to tilde: for each
# the wider of DejaVu Sans, which like Verdana is wider than the usual fonts, and Liberation Sans.
_REGULAR = (
    *(32, 41, 46, 84, 64, 96, 78, 28, 40, 40, 50, 84, 32, 37, 32, 34, 64, 64, 64, 64, 64, 64, 64),
    *(64, 64, 64, 34, 34, 84, 84, 84, 56, 102, 73, 69, 73, 78, 67, 62, 78, 76, 34, 50, 73, 62, 89),
    *(75, 79, 67, 79, 73, 67, 62, 74, 73, 99, 73, 73, 69, 40, 34, 40, 84, 56, 50, 62, 64, 55, 64),
    *(62, 36, 64, 64, 28, 28, 58, 28, 98, 64, 62, 64, 64, 42, 53, 40, 64, 60, 82, 60, 60, 53, 64),
    *(34, 64, 84),
)
_BOLD = (
    *(35, 46, 56, 84, 70, 101, 88, 31, 46, 46, 53, 84, 38, 42, 38, 37, 70, 70, 70, 70, 70, 70, 70),
    *(70, 70, 70, 40, 40, 84, 84, 84, 62, 100, 78, 77, 74, 84, 69, 69, 83, 84, 39, 56, 78, 67),
    *(100, 84, 86, 74, 86, 78, 73, 69, 82, 78, 111, 78, 73, 73, 46, 37, 46, 84, 56, 50, 68, 72, 60),
    *(72, 68, 44, 72, 72, 35, 35, 67, 35, 105, 72, 69, 72, 72, 50, 60, 48, 72, 66, 93, 65, 66, 59),
    *(72, 37, 72, 84),
)
_FIRST, _LAST = 32, 126
_WIDE, _OTHER = 110, 100


def text_width(text: str, *, size: float, bold: bool = False) -> float:
    """Return the most that ``text`` takes, in the unit of ``size``."""
    table = _BOLD if bold else _REGULAR
    hundredths = 0
    for character in text:
        code = ord(character)
        if _FIRST <= code <= _LAST:
            hundredths += table[code - _FIRST]
        else:
            wide = unicodedata.east_asian_width(character) in "WF"
            hundredths += _WIDE if wide else _OTHER
    return hundredths * size / 100


def shortened(text: str, length: int) -> str:
    """Return ``text`` with its middle left out if it is longer than ``length`` characters."""
    if len(text) <= length:
        return text
    tail = (length - 1) // 2
    return f"{text[: length - 1 - tail]}…{text[-tail:]}"
