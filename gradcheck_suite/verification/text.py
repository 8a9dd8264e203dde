"""How what the user gave, and what it raised, is written in a message."""

from __future__ import annotations

__all__ = ["describe", "one_line", "short_name"]

_LONGEST_VALUE = 60
"""Up to so many characters a value is shown in a message: with the words around it, one line."""
_LONGEST_ERROR = 120
"""How many characters of an exception a message quotes where nothing else is said."""


def describe(value: object) -> str:
    """Show a value that is out of place: its type, and itself where it is short."""
    shown = repr(value)
    kind = type(value).__name__
    return f"{kind} {shown}" if len(shown) <= _LONGEST_VALUE else kind


def one_line(error: BaseException, *, longest: int = _LONGEST_ERROR) -> str:
    r"""Return the type and the words of an exception, cut off with dots where they are long.

    >>> one_line(ValueError("first line\nsecond line"))
    'ValueError: first line second line'
    """
    words = " ".join(str(error).split())
    name = type(error).__name__
    text = f"{name}: {words}" if words else name
    return text if len(text) <= longest else text[: longest - 3].rstrip() + "..."


def short_name(kind: object) -> str:
    """Return the name of a type or a layout of torch's without the module's.

    >>> import torch
    >>> short_name(torch.float64)
    'float64'
    """
    return str(kind).removeprefix("torch.")
