"""What detectors have in common: they count what they see, and tell of each once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from gradcheck_suite.findings import Related

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gradcheck_suite.findings import Finding, Location

__all__ = ["Occurrences", "related"]

_K = TypeVar("_K")
_V = TypeVar("_V")


class Occurrences(Generic[_K, _V]):
    """What a detector has seen: by its key, what it was the first time, and how often it was.

    >>> seen = Occurrences()
    >>> for step in range(3):
    ...     seen.note("train.py:7", lambda step=step: f"first in step {step}")
    >>> seen.findings(lambda first, count: f"{count} times, {first}")
    ['3 times, first in step 0']
    """

    def __init__(self) -> None:
        self._first: dict[_K, _V] = {}
        self._counts: dict[_K, int] = {}

    def __iter__(self) -> Iterator[_K]:
        return iter(self._first)

    def __bool__(self) -> bool:
        return bool(self._first)

    def note(self, key: _K, describe: Callable[[], _V], *, times: int = 1) -> None:
        """Count what is known once more, and what is new, as ``describe`` has it, ``times``."""
        if key in self._first:
            self._counts[key] += 1
        else:
            self._first[key] = describe()
            self._counts[key] = times

    def discard(self, key: _K) -> None:
        """Forget what was seen, if it was: it was no mistake."""
        self._first.pop(key, None)

    def findings(self, write: Callable[[_V, int], Finding], *, least: int = 1) -> list[Finding]:
        """Return what ``write`` makes of each that was seen at least so many times."""
        return [
            write(first, count)
            for key, first in self._first.items()
            if (count := self._counts[key]) >= least
        ]


def related(
    *places: tuple[Location | None, str], apart_from: Location | None = None
) -> list[Related]:
    """Return the places that are known, and not that of the finding itself, with their words."""
    return [
        Related(place, words)
        for place, words in places
        if place is not None and place != apart_from
    ]
