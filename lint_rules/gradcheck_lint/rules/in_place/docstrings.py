"""Find the comments and the docstring at the head of a function, in the bytes of its source.

The tree that files are first read into has no comments.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from gradcheck_lint.model.module import FunctionModel

_MOST_LINES: Final = 40
"""How many lines of a head are read, those of its parameters among them."""


def head_of(function: FunctionModel) -> bytes:
    """Return the text from the end of a function's parameters to its first statement.

    Of functions with the same name it is that of the same place among them, or of all if other
    text, as in a docstring, looks like one more.
    """
    source, scopes = function.module.source, function.module.scopes
    name = function.scope.name.rpartition(".")[2]
    same = [scope for scope in scopes.functions if scope.name.rpartition(".")[2] == name]
    pattern = rb"(?m)^[ \t]*(?:async[ \t]+)?def[ \t]+%b[ \t]*\(" % re.escape(name.encode())
    places = [match.end() for match in re.finditer(pattern, source)]
    if len(places) == len(same) and function.scope in same:
        places = [places[same.index(function.scope)]]
    return b"\n".join(_head(source, place) for place in places)


def _head(source: bytes, start: int) -> bytes:
    """Return the comments and the docstring that follow parameters, which begin at a place."""
    lines = source[start:].split(b"\n", _MOST_LINES)[:_MOST_LINES]
    found: list[bytes] = []
    quotes: bytes | None = None
    is_signature = True
    for line in lines:
        text = line.strip()
        if is_signature:
            code, _, comment = text.partition(b"#")
            is_signature = not code.rstrip().endswith(b":")
            found.append(comment)
        elif quotes is not None:
            found.append(text)
            quotes = None if quotes in text else quotes
        elif text.startswith((b'"""', b"'''")):
            found.append(text)
            quotes = text[:3] if text.count(text[:3]) == 1 else None
        elif text.startswith(b"#") or not text:
            found.append(text)
        else:
            break
    return b"\n".join(found)
