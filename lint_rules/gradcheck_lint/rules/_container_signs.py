"""Look in the bytes of a source for plain containers that are put on attributes.

Whatever can't be told from the text alone is taken for a sign: to read the source will tell.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gradcheck_lint.rules._signs import Pattern, compiled
from gradcheck_lint.rules._write_signs import first_statement

if TYPE_CHECKING:
    import re

_MOST_TARGET: Final = 200


def _may_be_container(match: re.Match[bytes]) -> bool:
    """Tell whether what is assigned may be a container, or made by a function of the file."""
    source, start = match.string, match.end()
    line = source.rfind(b"\n", 0, match.start()) + 1
    before = source[line : match.start()] if match.start() - line < _MOST_TARGET else b""
    if compiled(rb"\s*\w+").fullmatch(before) is None:
        # Not the first thing on its line; in parentheses it's a condition or an argument.
        return b"(" not in before
    name = compiled(rb"(\w+)[ \t]*(?:[#\r\n]|\Z)").match(source, start)
    if name is not None:
        word = name[1]
        has_list = compiled(word + rb"(?<!\w" + word + rb")[\s\\]*(?::[^\n=]{,200})?=[\s\\]*\[")
        return has_list.search(source) is not None
    call = compiled(rb"((?:\w+\.)*)(\w+)\(").match(source, start)
    if call is not None:
        is_made = not call[1] and call[2] in _CONTAINERS
        if is_made or (call[1].count(b".") <= 1 and b"def " + call[2] in source):
            return True
    elif compiled(rb"[\w\"'-]").match(source, start) is None:
        return True
    statement = first_statement(source, start)
    return statement is None or _has_comma(statement)


def _has_comma(statement: bytes) -> bool:
    """Tell whether a comma stands outside of all parentheses."""
    depth = 0
    for found in compiled(rb"[()\[\]{},]").finditer(statement):
        if found[0] == b"," and not depth:
            return True
        depth += (found[0] in b"([{") - (found[0] in b")]}")
    return False


_CONTAINERS: Final = frozenset({b"list", b"tuple", b"dict"})

CONTAINER_ON_ATTRIBUTE: Final = Pattern(
    (rb"\.[ \t]*\w+[ \t]*(?::[^=\n]{,200})?=(?!=)[ \t]*",), confirms=_may_be_container
)
"""``self.layers = []``, ``self.layers = layers``, ``self.layers = make_layers()``."""
