"""Look in the bytes of a source for plain containers that are put on attributes.

Whatever can't be told from the text alone is taken for a sign: to read the source will tell.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

from gradcheck_lint.rules._signs import Pattern, asked_once, compiled, whole_words
from gradcheck_lint.rules._write_signs import first_statement

if TYPE_CHECKING:
    import re

_MOST_TARGET: Final = 200
_MOST_BINDING: Final = 400
"""A name, its annotation and what may stand around them."""


def _may_be_container(match: re.Match[bytes]) -> bool:
    """Tell whether what is assigned may be a container, or made by a function of the file."""
    source, start = match.string, match.end()
    line = source.rfind(b"\n", 0, match.start()) + 1
    if match.start() - line > _MOST_TARGET:
        return True
    before = source[line : match.start()]
    if compiled(rb"\s*\w+").fullmatch(before) is None:
        # `self.a = self.b =`, `if a: self.b =`; anything else assigns to no attribute, or to many.
        if compiled(_GOING_ON).fullmatch(before) is not None:
            return True
        # `self.a, self.b = [], {}`
        return b"," in before and compiled(_SOME_CONTAINER).match(source, start) is not None
    name = compiled(rb"(\w+)[ \t]*(?:[#\r\n]|\Z)").match(source, start)
    if name is not None:
        return name[1] in _names_of_lists(source)
    statement = first_statement(source, start)
    return statement is None or _makes_container(statement, source)


@lru_cache(maxsize=1)
def _names_of_lists(source: bytes) -> frozenset[bytes]:
    """Return the names that are bound to a list that is spelt out, and maybe other words."""
    found: set[bytes] = set()
    for match in compiled(rb"=[\s\\]*\[").finditer(source):
        end = match.start()
        before = source[max(0, end - _MOST_BINDING) : end].rstrip(b" \t\r\n\f\v\\")
        line = before.rpartition(b"\n")[2]
        if line.lstrip()[:1] != b":" and line.count(b"]") <= line.count(b"["):
            before = line
        # Those before colons may have an annotation.
        found.update(compiled(rb"(\w+)[\s\\]*(?::|\Z)").findall(before))
    return frozenset(found)


def _makes_container(statement: bytes, source: bytes) -> bool:
    """Tell whether an expression may be a container, or is made by a function of the file."""
    others = compiled(rb"[\w.,\s]+=(?!=)\s*").match(statement)
    if others is not None:
        statement = statement[others.end() :]
    if statement.startswith(b"("):
        return _makes_container(statement[1:].lstrip(), source)
    if compiled(rb"[\w\"'-]").match(statement) is None or _has_comma(statement):
        return True
    call = compiled(rb"((?:\w+\.)*)(\w+)\(").match(statement)
    if call is None:
        return False
    if call[2] in _CONTAINERS and (not call[1] or call[2] not in _BUILTINS):
        return True
    return call[1].count(b".") <= 1 and _may_return_container(source, call[2])


@asked_once(otherwise=True)
def _may_return_container(source: bytes, name: bytes) -> bool:
    """Tell whether a function of the file may return what ``RETURNED_LIST`` describes."""
    head = b"def " + name + b"("
    start = source.find(head)
    while start >= 0:
        indentation = start - source.rfind(b"\n", 0, start) - 1
        following = rb"\n[ \t]{0,%d}(?:def|class|async|@)" % min(indentation, _MOST_TARGET)
        end = compiled(following).search(source, start)
        stop = len(source) if end is None else end.start()
        if compiled(RETURNED_LIST.encode()).search(source, start, stop) is not None:
            return True
        start = source.find(head, stop)
    return any(
        compiled(rb"\s*\[|\s+\(").match(source, end) is not None
        and source[max(0, start - _MOST_TARGET) : start].rstrip().endswith(b"def")
        for start, end in whole_words(source, name)
    )


RETURNED_LIST: Final = r"(?m)^\s*return[\s\\(]+(?:\[|\w+[)\s]*$|(?:list|tuple|dict)\()"
"""``return [``, ``return layers``, ``return dict(``."""


def _has_comma(statement: bytes) -> bool:
    """Tell whether a comma stands outside of all parentheses that open in a text."""
    inside = 0
    for found in compiled(rb"[()\[\]{},]").finditer(statement):
        if found[0] == b"," and inside <= 0:
            return True
        inside += (found[0] in b"([{") - (found[0] in b")]}")
    return False


_GOING_ON: Final = (
    rb"[^,(#]*=\s*\w+|[^#]*;\s*\w+"
    rb"|\s*(?:if|elif|else|for|while|with|try|except|finally|def)\b[^#]*:\s*\w+"
)
_SOME_CONTAINER: Final = rb"[^\n]*?(?:[\[{]|\b(?:list|tuple|dict|OrderedDict|defaultdict)\()"
_BUILTINS: Final = frozenset({b"list", b"tuple", b"dict"})
_CONTAINERS: Final = _BUILTINS | {b"OrderedDict", b"defaultdict"}

CONTAINER_ON_ATTRIBUTE: Final = Pattern(
    (rb"\.[ \t]*\w+[ \t]*(?::[^=\n]{,200})?=(?!=)[ \t]*",), confirms=_may_be_container
)
"""``self.layers = []``, ``self.layers = layers``, ``self.layers = make_layers()``."""
