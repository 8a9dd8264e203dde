"""The text of an exception on one line, short enough for a message."""

from __future__ import annotations

__all__ = ["one_line"]

_LONGEST = 120


def one_line(error: BaseException, *, longest: int = _LONGEST) -> str:
    r"""Return the type and the words of an exception, cut off with dots where they are long.

    >>> one_line(ValueError("first line\nsecond line"))
    'ValueError: first line second line'
    """
    words = " ".join(str(error).split())
    name = type(error).__name__
    text = f"{name}: {words}" if words else name
    return text if len(text) <= longest else text[: longest - 3].rstrip() + "..."
