"""Parse bytes, and survive whatever they are."""

from __future__ import annotations

import ast
import codecs
import re
import symtable
import warnings
from contextlib import contextmanager
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from gradcheck_lint.unreadable import unreadable
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import libcst as cst

    from gradcheck_suite.findings import Finding

MAX_BYTES: Final = 512 << 10
"""A syntax tree takes some 550 times the size of its source, 300 MB here: larger files are not
read, which is a finding where a rule would have looked at them."""

_MAX_DEPTH: Final = 1000
_TOO_DEEP: Final = "its expressions are nested too deeply to read"
_MOST_NESTED: Final = 100
_ROUNDS: Final = 6
_MAX_ELEMENTS: Final = 10_000
"""libcst 1.9 takes the square of the number of elements in bytes: 10,000 are 100 MB."""
_LIBCST_PLACE = re.compile(r"error at (\d+):(\d+)")
_ADJACENT_STRINGS = re.compile(rb"[\"']\s*\\?\s*[\"']")
_BRACKETS = {**dict.fromkeys(b"([{", 1), **dict.fromkeys(b")]}", -1)}
_NOT_BRACKETS = bytes(byte for byte in range(256) if byte not in _BRACKETS)


def check_source(source: bytes, path: str, *, parsed_next: bool = False) -> Finding | None:
    """Return the finding for source that can't be parsed, or None if libcst may have it.

    libcst's parser is native code without a limit on nesting, and overflows the stack where
    Python's own parser gives up in good order: so that one goes first, unless a look at the text
    shows that nothing nests deeply and ``parsed_next`` says that libcst will tell. Where Python's
    refuses syntax newer than itself, libcst decides.
    """
    if len(source) > MAX_BYTES:
        if not parsed_next:
            return None
        reason = f"it has {len(source):,} bytes, more than {MAX_BYTES:,}"
        return unreadable(path, reason, severity=Severity.WARNING)
    undecodable = _undecodable(source, path)
    shallow = _is_shallow(source)
    if undecodable is not None or (shallow and (parsed_next or _has_symbols(source))):
        return undecodable
    try:
        tree = _python_tree(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        if isinstance(error, SyntaxError) and shallow and not _libcst_refuses(source):
            return None
        return _refusal(error, path)
    return None if shallow else _excess(tree, source, path)


def _undecodable(source: bytes, path: str) -> Finding | None:
    """Return the finding for text that Python would not decode; ``ast`` lets comments pass."""
    if source.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or (
        source.count(b"\0") > len(source) // 3
    ):
        return unreadable(path, "it is not UTF-8 but seems to be UTF-16; save it as UTF-8")
    if source.isascii():
        return None
    declared = _declared_encoding(source)
    try:
        source.decode(declared or "utf-8")
    except LookupError:
        return None  # the parser tells
    except UnicodeDecodeError as error:
        where = source.count(b"\n", 0, error.start) + 1
        missing = "it is not UTF-8, and its first two lines declare no other encoding"
        reason = missing if declared is None else f"it is not {declared}, which it declares"
        return unreadable(path, reason, line=where)
    return None


def _declared_encoding(source: bytes) -> str | None:
    """Return the encoding that a comment in the first two lines names (PEP 263)."""
    for line in source.split(b"\n", 2)[:2]:
        found = _CODING.match(line)
        if found is not None:
            return found[1].decode()
    return None


_CODING: Final = re.compile(rb"[ \t\f]*#.*?coding[:=][ \t]*([-\w.]+)", re.ASCII)


def _has_symbols(source: bytes) -> bool:
    """Tell whether Python can make a table of symbols of source, so that it can parse it.

    No objects are made of the tree for that, which saves a third of the time. A few sources that
    can be parsed have no such table: ``def f(a, a): pass``.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            symtable.symtable(source, "<source>", "exec")  # type: ignore[arg-type]
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return False
    return True


def _python_tree(source: bytes) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(source)


def _refusal(error: Exception, path: str) -> Finding:
    """Return the finding for what Python's own parser says of a source."""
    if isinstance(error, SyntaxError):
        column = error.offset if error.offset and error.offset > 0 else None
        reason = f"it is not valid Python 3: {error.msg}"
        return unreadable(path, reason, line=error.lineno, column=column)
    if isinstance(error, ValueError):
        return unreadable(path, f"it is not Python source: {error}")
    return unreadable(path, _TOO_DEEP)


def parse(source: bytes, path: str) -> cst.Module | Finding:
    """Return the syntax tree of source that ``check_source`` has passed."""
    import libcst as cst  # noqa: PLC0415 - takes a third of a second; only for files that need it

    try:
        with _unvalidated():
            return cst.parse_module(source)
    except (cst.ParserSyntaxError, SyntaxError, UnicodeError, LookupError, ValueError) as error:
        try:
            _python_tree(source)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as clearer:
            return _refusal(clearer, path)
        if not isinstance(error, cst.ParserSyntaxError):
            return unreadable(path, f"its text can't be decoded: {error}")
        place = _LIBCST_PLACE.search(error.message)
        line, column = (int(place[1]), int(place[2]) + 1) if place else (None, None)
        reason = error.message.partition(": expected one of")[0]
        return unreadable(path, f"it can't be parsed: {reason}", line=line, column=column)


@contextmanager
def _unvalidated() -> Iterator[None]:
    """Let libcst build nodes without checking each of them, for a tenth of the time.

    The check is for trees that are put together by hand; the parser's are right. Nodes that are
    made afterwards are checked as ever.
    """
    import libcst as cst  # noqa: PLC0415 - as above

    check = cst.CSTNode.__post_init__
    cst.CSTNode.__post_init__ = _no_check  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        cst.CSTNode.__post_init__ = check  # type: ignore[method-assign]


def _no_check(_: cst.CSTNode) -> None:
    return None


def decode(source: bytes) -> str:
    """Return source as text, by its byte order mark or its declared encoding.

    Line ends stay as they are. What can't be decoded becomes question marks.
    """
    import tokenize  # noqa: PLC0415 - only for diffs and editors

    try:
        encoding, _ = tokenize.detect_encoding(iter(source.splitlines(keepends=True)).__next__)
    except SyntaxError:
        encoding = "utf-8"
    return source.decode(encoding, errors="replace")


def encode(text: str) -> bytes:
    """Return text as bytes in the encoding that it declares, for the parser to decode."""
    import tokenize  # noqa: PLC0415 - as above

    head = iter(text.encode("utf-8", "replace").splitlines(keepends=True)[:2])
    try:
        encoding, _ = tokenize.detect_encoding(lambda: next(head, b""))
        return text.encode(encoding)
    except (SyntaxError, UnicodeError, LookupError):
        return text.encode("utf-8", "replace")


def _libcst_refuses(source: bytes) -> bool:
    return not hasattr(parse(source, ""), "body")


def _is_shallow(source: bytes) -> bool:
    """Tell whether source can't nest deeply, judged without a parser."""
    return (
        _nests_little(source.translate(None, _NOT_BRACKETS))
        and _has_short_lines(source, 2 * _MAX_DEPTH)
        and source.count(b"elif") < _MAX_DEPTH
        and (len(source) < _MAX_ELEMENTS or source.count(b",") < _MAX_ELEMENTS)
        and (
            source.count(b"'") + source.count(b'"') < _MAX_DEPTH
            or len(_ADJACENT_STRINGS.findall(source)) < _MAX_DEPTH
        )
    )


def _has_short_lines(source: bytes, size: int) -> bool:
    """Tell whether no line has so many bytes, for which few of the line ends are looked for."""
    start = 0
    while start + size <= len(source):
        end = source.rfind(b"\n", start, start + size)
        if end < 0:
            return False
        start = end + 1
    return True


def _nests_little(brackets: bytes) -> bool:
    """Tell whether brackets nest less than half as deep as Python itself allows."""
    left, levels = brackets, _MOST_NESTED
    for pair in (b"()", b"[]", b"{}") * _ROUNDS:
        # Each replacement takes one level away at most.
        left, levels = left.replace(pair, b""), levels - 1
        if len(left) < levels:
            return True
    # Those in strings and comments need no partner.
    depths = accumulate(map(_BRACKETS.__getitem__, brackets))
    return max(depths, default=0) < _MOST_NESTED


def _excess(tree: ast.AST, source: bytes, path: str) -> Finding | None:
    """Return why libcst can't safely parse source that has this tree, or None if it can."""
    level: list[ast.AST] = [tree]
    for _ in range(_MAX_DEPTH):
        below: list[ast.AST] = []
        for node in level:
            if isinstance(node, ast.BoolOp) and len(node.values) > _MAX_DEPTH:
                return unreadable(path, _TOO_DEEP)
            if isinstance(node, _SEQUENCES) and len(node.elts) > _MAX_ELEMENTS:
                reason = f"it has a literal of {len(node.elts):,} elements at line {node.lineno}"
                return unreadable(path, reason, severity=Severity.WARNING)
            below.extend(_children(node))
        if not below:
            has_many_strings = len(_ADJACENT_STRINGS.findall(source)) > 4 * _MAX_DEPTH
            return unreadable(path, _TOO_DEEP) if has_many_strings else None
        level = below
    return unreadable(path, _TOO_DEEP)


_SEQUENCES = (ast.List, ast.Tuple, ast.Set)


def _children(node: ast.AST) -> Iterable[ast.AST]:
    for name in node._fields:
        value = getattr(node, name, None)
        if isinstance(value, ast.AST):
            yield value
        elif isinstance(value, list):
            for item in value:
                if isinstance(item, ast.AST):
                    yield item
