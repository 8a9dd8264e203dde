"""Silence findings by comments, and tell which comments silence nothing.

``gradcheck_suite.reporting.silencing`` says how they are written. ``# noqa`` without codes silences
every finding of its line. What a run may find is left to the run: the name of a mistake that no
rule looks for, and in ``# gradcheck: ignore[...]`` each that is found at run time as well.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gradcheck_suite.catalogue import find
from gradcheck_suite.reporting.silencing import NOQA, OWN, folded, names_silenced, split_names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import libcst as cst

    from gradcheck_suite.findings import Finding

UNUSED_CODE: Final = "GCS001"
UNUSED_SLUG: Final = "unused-suppression"

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

    def for_runs(self) -> frozenset[str]:
        """Return the names that may be there for what is found at run time."""
        lists = (match["list"] for match in OWN.finditer(self.comment.value))
        names = {folded(name) for each in lists for name in split_names(each)}
        return frozenset(filter(_found_in_runs, names))

    def without(self, unwanted: frozenset[str]) -> str:
        """Return the comment without some of its names; empty if nothing is left to say."""
        text = OWN.sub(lambda match: _thinned(match, unwanted, folded), self.comment.value)
        text = NOQA.sub(lambda match: _thinned(match, unwanted, str.upper), text).rstrip()
        return text if text.strip("# \t") else ""


class Suppressions:
    """The comments of one file that silence findings."""

    def __init__(self, comments: Iterable[tuple[int, int, cst.Comment]]) -> None:
        self._by_line: dict[int, list[Suppression]] = {}
        for line, column, comment in comments:
            names = names_silenced(comment.value)
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
            unknown = frozenset(name for name in ours - known.keys() if not _found_in_runs(name))
            asked = (ours & known.keys()) - own.for_runs() - own.used
            idle = frozenset(name for name in asked if known[name] in applied)
            if unknown or idle:
                yield Unused(own, idle, unknown)


def _found_in_runs(name: str) -> bool:
    entry = find(name)
    return entry is not None and entry.at_run_time


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
    names = split_names(match["list"])
    kept = [name for name in names if folded(name) not in unwanted]
    if len(kept) == len(names):
        return match.group()
    (start, end), at, whole = match.span("list"), match.start(), match.group()
    return whole[: start - at] + ", ".join(kept) + whole[end - at :] if kept else ""
