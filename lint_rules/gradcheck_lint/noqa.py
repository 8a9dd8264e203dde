"""Silence findings by comments, for a project that wants to begin with new code."""

from __future__ import annotations

import io
import re
import tokenize
from collections import defaultdict
from typing import TYPE_CHECKING, Final

from gradcheck_lint.failures import FAILED_CODE
from gradcheck_lint.files import read_source, replace_source
from gradcheck_lint.parsing import decode
from gradcheck_lint.unreadable import UNREADABLE_CODE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gradcheck_suite.findings import Finding

NOT_SILENCED: Final = frozenset({UNREADABLE_CODE, FAILED_CODE})
"""Findings about a file and about the linter, which no comment in the file speaks of."""

_NOQA = re.compile(r"#\s*noqa\s*:\s*[A-Z]+[0-9]+(?:[\s,]+[A-Z]+[0-9]+)*", re.IGNORECASE)


def add_noqa(findings: Iterable[Finding]) -> tuple[int, list[str]]:
    """Write ``# noqa`` comments for findings into their files.

    Returns:
        How many findings are silenced, and what was left alone and why.
    """
    by_path: defaultdict[str, list[Finding]] = defaultdict(list)
    left: list[str] = []
    added = 0
    for finding in findings:
        if finding.location is not None and finding.code not in NOT_SILENCED:
            by_path[finding.location.path].append(finding)
    for path, found in by_path.items():
        if path.endswith(".ipynb"):
            left.append(f"{path}: notebooks are left alone; write the comments in their cells")
            continue
        try:
            source = read_source(path)
            new = with_noqa(source, found)
            if new != source:
                replace_source(path, old=source, new=new)
        except (OSError, UnicodeError) as error:
            left.append(f"{path}: {getattr(error, 'strerror', None) or error}")
        else:
            added += len(found)
    return added, left


def with_noqa(source: bytes, findings: Iterable[Finding]) -> bytes:
    """Return source with a comment on the line of each finding, or at its statement's end.

    Raises:
        UnicodeError: the source can't be decoded.
    """
    text = decode(source)
    encoding, _ = tokenize.detect_encoding(io.BytesIO(source).readline)
    if text.encode(encoding) != source:
        raise UnicodeError("its text can't be decoded")
    places = _places(text)
    wanted: defaultdict[int, set[str]] = defaultdict(set)
    for finding in findings:
        if finding.location is not None:
            line = finding.location.line
            wanted[places.get(line, line)].add(finding.code)
    lines = text.splitlines(keepends=True)
    kept = [_commented(line, wanted.get(number)) for number, line in enumerate(lines, 1)]
    return "".join(kept).encode(encoding)


def _places(text: str) -> Mapping[int, int]:
    """Return for each line the one to comment on: itself unless a string or a backslash ends it."""
    places: dict[int, int] = {}
    free: set[int] = set()
    first = 1
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in {tokenize.NEWLINE, tokenize.NL}:
            free.add(token.start[0])
        if token.type == tokenize.NEWLINE:
            end = token.start[0]
            places.update((line, line if line in free else end) for line in range(first, end + 1))
            first = end + 1
    return places


def _commented(line: str, codes: set[str] | None) -> str:
    if not codes:
        return line
    body = line.rstrip("\r\n")
    end = line[len(body) :]
    names = ", ".join(sorted(codes))
    present = _NOQA.search(body)
    if present is not None:
        missing = sorted(code for code in codes if code not in present.group().upper())
        added = "".join(f", {code}" for code in missing)
        return body[: present.end()] + added + body[present.end() :] + end
    return f"{body.rstrip()}  # noqa: {names}{end}"
