"""Look in the bytes of a source for writes to what may be a tensor.

Whatever can't be told from the text alone is taken for a sign: to read the source will tell.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from gradcheck_lint.model.knowledge import SAVES_INPUT
from gradcheck_lint.rules._signs import (
    SUBSCRIPT_WRITE,
    Pattern,
    asked_once,
    blocks_around,
    compiled,
    may_assign,
    whole_words,
    without_strings,
)

_MOST_TARGET: Final = 300
_MOST_STATEMENT: Final = 4000


class _Write(NamedTuple):
    """An assignment to an item of ``base`` on a line that begins at ``start``.

    ``base`` is empty where it isn't a name or an attribute. ``indentation`` counts characters.
    """

    start: int
    indentation: int
    base: bytes
    item: bytes


def _write_at(match: re.Match[bytes]) -> _Write | None:
    """Return what is written to before ``] =``; None where it can't be told."""
    source, bracket = match.string, match.start()
    start = source.rfind(b"\n", 0, bracket) + 1
    if bracket - start > _MOST_TARGET:
        return None
    target = without_strings(source[start:bracket])
    depth, place = 1, len(target)
    while depth:
        opening, closing = target.rfind(b"[", 0, place), target.rfind(b"]", 0, place)
        if opening < 0:
            return None
        place = max(opening, closing)
        depth += 1 if place == closing else -1
    whole = compiled(rb"[ \t]*((?:\w+\.)*\w+)(\[.*\])?").fullmatch(target, 0, place)
    if whole is None or compiled(rb"[\"'#\\;]").search(target) is not None:
        return None
    return _Write(start, whole.start(1), b"" if whole[2] else whole[1], target[place + 1 :])


def _may_move_in_loop(match: re.Match[bytes]) -> bool:
    """Tell whether an item of a tensor may be given something in a loop, by a changing index."""
    if not _may_assign_values(match):
        return False
    write = _write_at(match)
    return write is None or (
        compiled(rb"(?<!\w)[^\W\d]").search(write.item) is not None
        and _may_be_in_loop(match.string, write)
        and not (write.base and _is_no_tensor(match.string, write.base))
    )


def _may_assign_values(match: re.Match[bytes]) -> bool:
    """Tell whether ``...] =`` may assign something that isn't spelt out."""
    is_constant = compiled(_CONSTANT).match(match.string, match.end() - 1) is not None
    return not is_constant and may_assign(match)


@asked_once(otherwise=False)
def _is_no_tensor(source: bytes, name: bytes) -> bool:
    """Tell whether all that a name is ever bound to is a container, a literal or a number."""
    word = name.rpartition(b".")[2]
    if not word:
        return False
    is_bound = False
    for start, end in whole_words(source, word):
        line = source.rfind(b"\n", 0, start) + 1
        if start - line > _MOST_TARGET or source[start - 1 : start] in _QUOTES:
            return False
        before = source[line:start]
        binding = compiled(_BINDING).match(source, end)
        if binding is not None and b":=" not in binding[0]:
            if before.count(b"(") > before.count(b")"):
                continue  # an argument
            if _kind_of(source, binding.end()) is None:
                return False
            is_bound = True
        elif any(
            compiled(around).fullmatch(before) is not None
            and compiled(follows).match(source, end) is not None
            for around, follows in _OTHER_BINDINGS
        ):
            return False
    return is_bound


_QUOTES: Final = (b"'", b'"')
_BINDING: Final = rb"\s*(?::[^=\n]{,200})?=(?!=)[ \t]*"
_OTHER_BINDINGS: Final = (
    (rb".*\bfor\s[\w\s,(*]*", rb"[\w\s,)]*\bin\b"),
    (rb".*\b(?:as|global|nonlocal)\s[\w\s,(]*", rb""),
    (rb"\s*\(?(?:[\w.]+\s*,\s*)*", rb"\s*[,)][^\n=(]{,200}=(?!=)"),
    (rb".*\bdef\s+", rb""),
    (rb".*", rb"\s*:="),
)
"""What stands before a name on its line and what follows, where it is bound among others."""


def _kind_of(source: bytes, start: int) -> str | None:
    """Return whether a number or a container is assigned, by how it's written; None if neither."""
    statement = first_statement(source, start)
    if statement is None:
        return None
    # Where this cuts a string, what is left is neither.
    written = statement.partition(b"#")[0].strip()
    if written.endswith(b","):
        return "container"  # a tuple, or the argument of a call
    if compiled(_NUMBER).fullmatch(written) is not None:
        return "number"
    return "container" if compiled(_CONTAINER).fullmatch(written) is not None else None


_INSIDE: Final = rb"%b(?:[^()\[\]{}]|\([^()]*\)|\[[^\[\]]*\]|\{[^{}]*\})*%b"
_NUMBER: Final = rb"-?[\d.]+(?:[eE]-?\d+)?|None|True|False|(?:len|int|float|bool)" + _INSIDE % (
    rb"\(",
    rb"\)",
)
_CONTAINER: Final = b"|".join(
    (
        _INSIDE % (rb"\[", rb"\]"),
        _INSIDE % (rb"\{", rb"\}"),
        rb"(?:dict|list|set|tuple|str|OrderedDict|defaultdict|Counter)"
        + _INSIDE % (rb"\(", rb"\)"),
        rb"\(\)|\([\w.]+,\)",
        rb"[fr]?(?:\"[^\"\\]*\"|'[^'\\]*')",
    )
)
"""A display, a string, or a call that makes a container."""


def _may_be_in_loop(source: bytes, write: _Write) -> bool:
    """Tell whether one of the blocks around a statement may be that of a loop."""
    for block in blocks_around(source, write.start, write.indentation):
        if block is None or block[0] in _LOOPS:
            return True
        if block[0] == b"def":
            return False
    return False


_LOOPS: Final = frozenset({b"for", b"while", b"async"})


def _may_read_itself(match: re.Match[bytes]) -> bool:
    """Tell whether an item is given what is made of an item of the same."""
    if not _may_assign_values(match):
        return False
    write = _write_at(match)
    if write is None:
        return True
    if not write.base:
        return False
    # A match ends with the first character of what is assigned.
    source, start = match.string, match.end() - 1
    if source.find(write.base, start, start + _MOST_STATEMENT) < 0:
        return False
    statement = first_statement(source, start)
    if statement is None or _combines_item(statement, write.base):
        return True
    is_product = b"*" in match[0] or b"/" in match[0]
    return is_product and compiled(rb"[\s\\(]*").sub(b"", statement).startswith(write.base)


def _combines_item(statement: bytes, base: bytes) -> bool:
    """Tell whether an item of ``base`` is given to a call, multiplied or divided, or asked."""
    start = statement.find(base)
    while start >= 0:
        found = compiled(rb"\s*\[").match(statement, start + len(base))
        before, start = statement[:start], statement.find(base, start + len(base))
        if found is None:
            continue
        if before.rstrip()[-1:] in _BEFORE_OPERAND:
            return True
        depth, end = 1, found.end()
        for bracket in compiled(rb"[\[\]]").finditer(statement, end):
            depth += 1 if bracket[0] == b"[" else -1
            if depth == 0:
                end = bracket.end()
                break
        if compiled(_AFTER_OPERAND).match(statement, end) is not None:
            return True
    return False


_AFTER_OPERAND: Final = (
    rb"[\s\\)]*(?:[*/@]|\.[\s\\]*(?:%b)[\s\\]*\()" % "|".join(sorted(SAVES_INPUT)).encode()
)
"""An operator, or a method that saves what it's called on."""
_BEFORE_OPERAND: Final = frozenset({b"(", b",", b"*", b"/", b"@", b"=", b"\\"})


def first_statement(source: bytes, start: int) -> bytes | None:
    """Return the statement that begins, or goes on, at a place; None where it can't be told."""
    depth = 0
    for found in compiled(_STRUCTURE).finditer(source, start, start + _MOST_STATEMENT):
        what = found.lastgroup
        if what == "opening":
            depth += 1
        elif what == "closing":
            depth -= 1
        elif what == "unclear":
            return None
        elif what == "end" and depth <= 0:
            return source[start : found.start()]
    is_whole = depth <= 0 and len(source) <= start + _MOST_STATEMENT
    return source[start:] if is_whole else None


_CONSTANT: Final = (
    rb"[ \t]*(?:None|True|False|[\d.]+|\"[^\"\n]*\"|'[^'\n]*')[ \t]*,?[ \t]*(?:[#\r\n]|\Z)"
)
_STRUCTURE: Final = (
    rb"(?P<opening>[(\[{])|(?P<closing>[)\]}])|(?P<end>\n)|#[^\n]*"
    rb"|(?!\"\"\"|''')(?:\"[^\"\\\n]*\"|'[^'\\\n]*')|(?P<unclear>[\"'\\])"
)

ITEM_MOVED_IN_LOOP: Final = Pattern(SUBSCRIPT_WRITE.expressions, confirms=_may_move_in_loop)
"""``for ...:`` and below it ``x[i] =``."""

ITEM_MADE_OF_ITEM: Final = Pattern(SUBSCRIPT_WRITE.expressions, confirms=_may_read_itself)
"""``x[i] = ... x[j] ...``."""


def _may_write_item(match: re.Match[bytes]) -> bool:
    """Tell whether an item of a tensor may be written."""
    if not may_assign(match):
        return False
    write = _write_at(match)
    return write is None or not _is_no_tensor(match.string, write.base)


ITEM_WRITE: Final = Pattern(SUBSCRIPT_WRITE.expressions, confirms=_may_write_item)
"""``x[i] =``, unless ``x`` is a list or a dictionary."""


def _may_change_tensor(match: re.Match[bytes]) -> bool:
    """Tell whether what stands before ``+=`` may be a tensor, or become one."""
    source, start = match.string, match.start()
    line = source.rfind(b"\n", 0, start) + 1
    if start - line > _MOST_TARGET:
        return True
    target = compiled(rb"[ \t]*([\w.]+)[ \t]*[*/]?").fullmatch(source, line, start)
    if target is None:
        return b"#" not in source[line:start]
    added = _kind_of(source, match.end())
    if added is None:
        return True
    # torch adds no string or list to a tensor.
    return added == "number" and not _is_no_tensor(source, target[1])


AUGMENTED_WRITE: Final = Pattern(
    tuple(
        re.escape(operator) + rb"=[ \t]*"
        for operator in (b"+", b"-", b"*", b"/", b"@", b"%", b"&", b"|", b"^", b"<<", b">>")
    ),
    confirms=_may_change_tensor,
)
"""``x +=``, unless ``x`` is a number, a string or a list and so is what it's changed by."""
