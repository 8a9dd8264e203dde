"""Read the comments that silence findings, of the linter and of a run that is watched.

``# noqa: GCS301, E501`` names codes, in any case, separated by commas or spaces; codes of other
tools are left to them. ``# gradcheck: ignore[missing-zero-grad]`` names rules by slug or code. What
follows either, up to the next ``#``, is the reason. A comment counts on the line that a finding
names, and on the first and the last line of the statement that it is in.
"""

from __future__ import annotations

import re
from itertools import chain
from typing import TYPE_CHECKING

from gradcheck_suite import catalogue
from gradcheck_suite.reporting.paths import display_path
from gradcheck_suite.reporting.source import SourceLines

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from gradcheck_suite.findings import Finding, Location

__all__ = [
    "NOQA",
    "OWN",
    "CommentsOfSources",
    "folded",
    "names_in",
    "names_silenced",
    "split_names",
]

NOQA = re.compile(
    r"#\s*noqa(?P<codes>\s*:\s*(?P<list>[A-Z][A-Z]*[0-9]+(?:[\s,]+[A-Z][A-Z]*[0-9]+)*))?"
    r"(?P<reason>[^#]*)",
    re.IGNORECASE,
)
"""The comment that many linters share; without a ``list``, it silences all that they find."""
OWN = re.compile(r"#\s*gradcheck:\s*ignore\[(?P<list>[^\]]*)\](?P<reason>[^#]*)", re.IGNORECASE)
"""The comment that is ours alone."""

_SEPARATOR = re.compile(r"[\s,]+")
_MARKS = ("gcs", "gradcheck:")
"""Of which a source must have one, in small letters, if a comment is to name one of ours."""


def names_silenced(comment: str) -> frozenset[str] | None:
    """Return the codes and slugs that a comment names; None if it silences everything.

    >>> sorted(names_silenced("# noqa: gcs301,E501"))
    ['E501', 'GCS301']
    >>> names_silenced("# noqa") is None
    True
    """
    if any(match["list"] is None for match in NOQA.finditer(comment)):
        return None
    return names_in(comment)


def names_in(comment: str) -> frozenset[str]:
    """Return the codes and slugs that a comment names, also beside one that silences everything.

    >>> sorted(names_in("# noqa  # gradcheck: ignore[GCS301]"))
    ['GCS301']
    """
    shared = (split_names(match["list"] or "") for match in NOQA.finditer(comment))
    own = (split_names(match["list"]) for match in OWN.finditer(comment))
    return frozenset(
        [*map(str.upper, chain.from_iterable(shared)), *map(folded, chain.from_iterable(own))]
    )


def split_names(text: str) -> list[str]:
    """Return the names of a list, separated by commas or spaces."""
    return [name for name in _SEPARATOR.split(text.strip()) if name]


def folded(name: str) -> str:
    """Return a code in capitals, and a slug in small letters."""
    return name.upper() if name.upper().startswith("GCS") else name.lower()


class CommentsOfSources:
    """Tells which findings of a run a comment in the program's source silences.

    Only a comment that names the code or the slug does: a bare ``# noqa`` is for linters, and was
    written before anybody ran the program under audit. Each source is read once.
    """

    def __init__(self) -> None:
        self._sources = SourceLines()
        self._known: dict[tuple[str, int | None], Mapping[int, frozenset[str]]] = {}
        self.remarks: list[str] = []
        """What to say of comments that name no mistake, in sources that a finding is in."""

    def silence(self, finding: Finding) -> bool:
        """Return whether a comment on a finding's line, or on its statement's ends, names it."""
        place = finding.location
        if place is None:
            return False
        source = place.path, place.cell
        names = self._known.get(source)
        if names is None:
            lines = self._sources.lines_of(place)
            names = self._known[source] = _names_by_line(lines)
            self.remarks.extend(_of_no_mistake(lines, names, place))
        here = names.get(place.line, frozenset())
        return not here.isdisjoint((finding.code.upper(), finding.rule.lower()))


_OF_THE_LINTER = frozenset(
    {"GCS000", "unreadable-file", "GCS001", "unused-suppression", "GCS002", "internal-error"}
)


def _of_no_mistake(
    lines: Sequence[str], names: Mapping[int, frozenset[str]], place: Location
) -> Iterator[str]:
    """Say of each of our own comments which of its names no mistake has."""
    for line in sorted(names):
        for match in OWN.finditer(lines[line - 1]):
            for name in map(folded, split_names(match["list"])):
                is_known = catalogue.find(name) is not None or name in _OF_THE_LINTER
                if name in names[line] and not is_known:
                    cell = "" if place.cell is None else f" of cell {place.cell}"
                    where = f"{display_path(place.path)}:{line}{cell}"
                    yield f"the comment at {where} names {catalogue.unknown(name)}"


def _names_by_line(lines: Sequence[str]) -> dict[int, frozenset[str]]:
    """Return for each line of a source what the comments name that count there."""
    text = "\n".join(lines)
    if not any(mark in text.lower() for mark in _MARKS):
        return {}
    names: dict[int, frozenset[str]] = {}
    for first, last, comments in _statements(text):
        at_its_ends = comments.get(first, frozenset()) | comments.get(last, frozenset())
        for line in range(first, last + 1):
            here = at_its_ends | comments.get(line, frozenset())
            if here:
                names[line] = here
    return names


def _statements(text: str) -> Iterator[tuple[int, int, dict[int, frozenset[str]]]]:
    """Yield first and last line of each statement, or head of one, and what is named in it."""
    import io  # noqa: PLC0415 - this and the next where a comment may name one of ours
    import tokenize  # noqa: PLC0415

    first: int | None = None
    comments: dict[int, frozenset[str]] = {}
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            line = token.end[0]
            if token.type == tokenize.COMMENT:
                comments[line] = names_in(token.string)
            elif token.type == tokenize.NEWLINE:
                yield first or line, line, comments
                first, comments = None, {}
            elif token.type in {tokenize.NL, tokenize.INDENT, tokenize.DEDENT}:
                continue
            if first is None and token.type not in {tokenize.NEWLINE, tokenize.COMMENT}:
                first = token.start[0]
    except (SyntaxError, tokenize.TokenError):
        return  # as in a cell with what IPython alone can run: what stands before it counts
