"""Read the comments that silence findings, and tell which of them silence nothing.

``# noqa`` silences every finding of its line, ``# noqa: GCS301, E501`` those codes (in any case,
separated by commas or spaces; other tools' codes are left to them).
``# gradcheck: ignore[missing-zero-grad]`` names rules by slug or code. What follows either, up to
the next ``#``, is the reason. A comment counts on the line that a finding names, and on the first
and the last line of the statement it's in.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import libcst as cst

    from gradcheck_suite.findings import Finding

UNUSED_CODE: Final = "GCS001"
UNUSED_SLUG: Final = "unused-suppression"

_NOQA = re.compile(
    r"#\s*noqa(?P<codes>\s*:\s*(?P<list>[A-Z][A-Z]*[0-9]+(?:[\s,]+[A-Z][A-Z]*[0-9]+)*))?"
    r"(?P<reason>[^#]*)",
    re.IGNORECASE,
)
_OWN = re.compile(r"#\s*gradcheck:\s*ignore\[(?P<list>[^\]]*)\](?P<reason>[^#]*)", re.IGNORECASE)
_SEPARATOR = re.compile(r"[\s,]+")
_MARK = re.compile(rb"gradcheck:\s*ignore\[|noqa\s*:.*gcs")


def mentions_us(source: bytes) -> bool:
    """Tell whether source may have a comment that names one of our rules.

    >>> mentions_us(b"x = 1  # NoQA: E501, gcs301"), mentions_us(b"x = 1  # noqa: E501")
    (True, False)
    """
    text = source.lower()
    if b"gradcheck:" not in text and not (b"noqa" in text and b"gcs" in text):
        return False
    return b"#" in text and _MARK.search(text) is not None


def may_silence(source: bytes) -> bool:
    """Tell whether a comment of source in UTF-8 may silence anything.

    The last letters of "gradcheck: ignore" have look-alikes that are the same in another case.

    >>> may_silence(b"x = 1  # NoQA"), may_silence(b"x = 1  # a comment")
    (True, False)
    """
    text = source.lower()
    return b"noqa" in text or b"gradchec" in text


class Suppression:
    """One comment: where it is, which names it holds (None is every rule), and which were used."""

    def __init__(
        self, line: int, column: int, comment: cst.Comment, names: frozenset[str] | None
    ) -> None:
        self.line = line
        self.column = column
        self.comment = comment
        self.names = names
        self.used: set[str] = set()

    def silences(self, finding: Finding) -> bool:
        """Tell whether the comment is about this finding, and remember that it was of use."""
        if self.names is None:
            return True
        matching = {finding.code.upper(), finding.rule.lower()} & self.names
        self.used |= matching
        return bool(matching)

    def without(self, unwanted: frozenset[str]) -> str:
        """Return the comment without some of its names; empty if nothing is left to say."""
        text = _OWN.sub(lambda match: _thinned(match, unwanted, _folded), self.comment.value)
        text = _NOQA.sub(lambda match: _thinned(match, unwanted, str.upper), text).rstrip()
        return text if text.strip("# \t") else ""


class Suppressions:
    """The comments of one file that silence findings."""

    def __init__(self, comments: Iterable[tuple[int, int, cst.Comment]]) -> None:
        self._by_line: dict[int, list[Suppression]] = {}
        for line, column, comment in comments:
            names = _silenced_by(comment.value)
            if names is None or names:
                own = Suppression(line, column, comment, names)
                self._by_line.setdefault(line, []).append(own)

    def silence(self, finding: Finding, lines: Iterable[int]) -> bool:
        """Tell whether a comment on one of ``lines`` silences ``finding``."""
        here = [own for line in sorted(lines) for own in self._by_line.get(line, ())]
        # All of them are asked: two comments on one statement are not one too many.
        answers = [own.silences(finding) for own in here]
        return any(answers)

    def unused(self, codes: Iterable[str], slugs: dict[str, str]) -> Iterator[Unused]:
        """Yield the comments that name rules of ours in vain.

        Args:
            codes: the rules that were applied; of others nothing can be said.
            slugs: all rules, the code of each name.
        """
        applied = frozenset(codes)
        known = {name: code for slug, code in slugs.items() for name in (slug, code)}
        for own in (own for line in sorted(self._by_line) for own in self._by_line[line]):
            names = own.names or frozenset()
            ours = {name for name in names if name in known or not _NOT_OURS.fullmatch(name)}
            unknown = frozenset(ours - known.keys())
            idle = frozenset(name for name in ours - unknown - own.used if known[name] in applied)
            if unknown or idle:
                yield Unused(own, idle, unknown)


_NOT_OURS = re.compile(r"(?!GCS)[A-Z]+[0-9]+")


@dataclass(frozen=True, slots=True)
class Unused:
    """A suppression with names that silenced nothing, and names that are no rules."""

    suppression: Suppression
    idle: frozenset[str]
    unknown: frozenset[str]

    @property
    def message(self) -> str:
        """Say what is in vain."""
        parts = []
        if self.idle:
            parts.append(f"{_listed(self.idle)} {_is(self.idle)} not found here")
        if self.unknown:
            parts.append(f"{_listed(self.unknown)} {_is(self.unknown)} no rule of the linter")
        return "this comment silences nothing: " + ", and ".join(parts)


def _is(names: frozenset[str]) -> str:
    return "is" if len(names) == 1 else "are"


def _listed(names: frozenset[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))


def _thinned(match: re.Match[str], unwanted: frozenset[str], folded: Callable[[str], str]) -> str:
    """Return a suppression without some of its names; with the last one goes the reason."""
    if match["list"] is None:
        return match.group()
    names = _split(match["list"])
    kept = [name for name in names if folded(name) not in unwanted]
    if len(kept) == len(names):
        return match.group()
    (start, end), at, whole = match.span("list"), match.start(), match.group()
    return whole[: start - at] + ", ".join(kept) + whole[end - at :] if kept else ""


def _split(text: str) -> list[str]:
    return [name for name in _SEPARATOR.split(text.strip()) if name]


def _folded(name: str) -> str:
    return name.upper() if name.upper().startswith("GCS") else name.lower()


def _silenced_by(comment: str) -> frozenset[str] | None:
    """Return the codes and slugs that a comment names; None if it silences everything.

    >>> sorted(_silenced_by("# noqa: gcs301,E501"))
    ['E501', 'GCS301']
    >>> _silenced_by("# noqa") is None
    True
    """
    names: set[str] = set()
    for match in _NOQA.finditer(comment):
        if match["list"] is None:
            return None
        names.update(code.upper() for code in _split(match["list"]))
    for match in _OWN.finditer(comment):
        names.update(_folded(name) for name in _split(match["list"]))
    return frozenset(names)
