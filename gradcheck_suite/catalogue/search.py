"""Find the entries that somebody may have meant by a name that no entry has."""

from __future__ import annotations

import difflib
import functools
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gradcheck_suite.catalogue.entry import Entry

__all__ = ["nearest"]

_MOST = 5
_CODE_LIKE = re.compile(r"(?:[gcs]{3}[-_ ]?)?[\doil]{1,4}|gcs.*", re.IGNORECASE)
_LOOK_ALIKES = str.maketrans("OIL", "011")

# What a word of the query counts for, by where it is found; a misspelt or inflected word counts
# a little less than the word itself.
_IN_SLUG, _IN_TITLE, _IN_PROSE = 4.0, 2.0, 1.0
_INFLECTED = 0.75
_WHOLE_NAME = 8.0
_WORTH_SHOWING = 0.6
_SAME_WORD = 0.8
_SAME_NAME = 0.75
_SHORTEST_WORD = 3
_SHORTEST_STEM = 4


def nearest(name: str, entries: Sequence[Entry]) -> tuple[str, ...]:
    """Return the codes or slugs that are nearest to ``name``, best first, five at most."""
    name = name.strip()
    if _CODE_LIKE.fullmatch(name):
        codes = [entry.code for entry in entries]
        return _nearest_codes(name, codes)
    words = [word for word in _words(name) if len(word) >= _SHORTEST_WORD]
    scores = {entry.slug: _score(name, words, entry) for entry in entries}
    best = max(scores.values(), default=0.0)
    if not best:
        return ()
    found = [slug for slug, score in scores.items() if score >= _WORTH_SHOWING * best]
    found.sort(key=lambda slug: -scores[slug])
    return tuple(found[:_MOST])


def _nearest_codes(name: str, codes: Sequence[str]) -> tuple[str, ...]:
    digits = re.sub(r"^[gcs]{3}[-_ ]?", "", name.lower()).upper().translate(_LOOK_ALIKES)
    code = f"GCS{digits}"
    if code in codes:
        return (code,)
    starting = [known for known in codes if known.startswith(code)]
    return tuple(starting[:_MOST]) or tuple(difflib.get_close_matches(code, codes, _MOST, 0.8))


def _score(name: str, words: Iterable[str], entry: Entry) -> float:
    squashed, slug = "".join(_words(name)), entry.slug.replace("-", "")
    whole = difflib.SequenceMatcher(None, squashed, slug).ratio() if squashed else 0.0
    if len(squashed) >= _SHORTEST_STEM and squashed in slug:
        whole = 1.0
    score = _WHOLE_NAME * whole if whole >= _SAME_NAME else 0.0
    places = (
        (_IN_SLUG, set(entry.slug.split("-"))),
        (_IN_TITLE, set(_words(entry.title))),
        (_IN_PROSE, _prose_words(entry)),
    )
    for word in words:
        score += max(weight * _presence(word, place) for weight, place in places)
    return score


def _presence(word: str, place: Iterable[str]) -> float:
    """Return 1 if ``word`` is there, less if only a form of it is, 0 if nothing like it is."""
    if word in place:
        return 1.0
    return _INFLECTED if any(_akin(word, other) for other in place) else 0.0


@functools.cache
def _prose_words(entry: Entry) -> frozenset[str]:
    return frozenset(_words(f"{entry.what} {entry.why}"))


def _akin(word: str, other: str) -> bool:
    shorter, longer = sorted((word, other), key=len)
    if len(shorter) < _SHORTEST_WORD:
        return False
    if len(shorter) >= _SHORTEST_STEM and longer.startswith(shorter):
        return True
    matcher = difflib.SequenceMatcher(None, word, other)
    return matcher.real_quick_ratio() >= _SAME_WORD and matcher.ratio() >= _SAME_WORD


def _words(text: str) -> list[str]:
    """Split a text or a name in any style (``zero_grad``, ``GradScaler``) into lower-case words."""
    return re.findall(r"[a-z]+|\d+", re.sub(r"(?<=[a-z]{2})(?=[A-Z][a-z])", " ", text).lower())
