"""All that Python's garbage collector knows: searched in one place, and for a bounded time.

Whoever wants to know what holds an object, or which modules there are, has to go through every
object of the process, which are some hundred thousand as soon as a compiler or a large library is
imported. Those who ask in one moment share one list of them, and all searches of an audit together
take no more than two seconds, or its share of the time of the run where that is more.
"""

from __future__ import annotations

import gc
import math
import sys
from functools import partial
from itertools import compress
from operator import is_not
from time import perf_counter, thread_time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["Heap", "SearchEndedError"]

_AT_LEAST = 2.0
"""So many seconds may be spent on searches in any run: a small program never gets there. Chosen:
some twenty searches of a usual process, a tenth of a second each."""

_AT_ONCE = 512
"""Objects whose references are read by one call. Chosen: it spares a call for each object, and the
list for one call stays small; only parts with a hit are read one by one."""

_FEW = 8
"""For so many objects, CPython's own search compares each reference with each of them in less time
than it takes to put the references into a list."""
_PARTS_BETWEEN_LOOKS = 64
"""Parts between two looks at the clock: 32,768 objects, which took 0.02 seconds on a shared AMD
EPYC, so that a search overdraws its time by a hundredth."""


def _with_freed_objects() -> object:
    """Return the module whose references must not be read, or None.

    In CPython 3.12, ``_asyncio`` refers to objects that are freed and wait to be used again. To
    list those brings them to life; once they are freed a second time, their list has a circle,
    and no collection of garbage ends any more (seen in 3.12.1; 3.13 has them no longer).
    """
    return sys.modules.get("_asyncio") if sys.version_info[:2] == (3, 12) else None


class SearchEndedError(Exception):
    """The time for searches is used up."""


class Heap:
    """Searches through the objects of the process.

    Each search raises ``SearchEndedError`` once the time for all of them is used up.

    Args:
        overhead: the per cent of the time of the run that searches may take, where that is more
            than two seconds.

    Attributes:
        seconds: the CPU time that searches have taken so far.
        everything: all objects, while those who ask in one moment share the list.
    """

    def __init__(self, overhead: float = 0.0) -> None:
        self._share = overhead / 100
        self._began: float | None = None
        self.seconds = 0.0
        self._ended = False
        self.everything: list[Any] | None = None

    def begin(self) -> None:
        """Take the run to begin now, if it has not begun."""
        if self._began is None:
            self._began = perf_counter()

    def not_covered(self) -> list[str]:
        """Return what to say of searches that were not made, or not to their end."""
        if not self._ended:
            return []
        share = f" or {100 * self._share:g} % of the run" if self._share else ""
        line = (
            f"who holds what, beyond {self.seconds:.1f} s of searching through all objects of the "
            f"process: no more than {_AT_LEAST:g} s{share} are spent on that"
        )
        return [line]

    @property
    def is_exhausted(self) -> bool:
        """Return whether the time is used up; then it is told that somebody would have searched."""
        began = perf_counter() if self._began is None else self._began
        allowed = max(_AT_LEAST, self._share * (perf_counter() - began))
        if self.seconds < allowed or math.isinf(self._share):
            return False
        self._ended = True
        return True

    def forget(self) -> None:
        """Let go of the objects: the program goes on, or garbage is to be collected."""
        self.everything = None

    def collect(self, generation: int) -> None:
        """Collect garbage, on the time for searches."""
        self.forget()
        began = thread_time()
        gc.collect(generation)
        self.seconds += thread_time() - began

    def instances(self, *kinds: type) -> list[Any]:
        """Return the objects whose class is one of these or derived from one."""
        began = self._enter()
        try:
            wanted = set(kinds)
            waiting = list(kinds)
            while waiting:
                derived: list[type] = type.__subclasses__(waiting.pop())
                waiting.extend(each for each in derived if each not in wanted)
                wanted.update(derived)
            everything = self._objects()
            return list(compress(everything, map(wanted.__contains__, map(type, everything))))
        finally:
            self.seconds += thread_time() - began

    def referrers(self, things: Sequence[Any]) -> list[Any]:
        """Return the objects that refer to any of these, in the garbage collector's order."""
        began = self._enter()
        try:
            # Python 3.13 and later tell of the tuple of arguments, too.
            asked = tuple(things)
            if len(asked) <= _FEW:
                found: list[Any] = gc.get_referrers(*asked)
            else:
                wanted = frozenset(map(id, asked))
                found = [
                    each
                    for part in self._parts(began)
                    if not wanted.isdisjoint(map(id, gc.get_referents(*part)))
                    for each in part
                    if not wanted.isdisjoint(map(id, gc.get_referents(each)))
                ]
            own = {id(asked), id(things), id(self.everything), id(_with_freed_objects())}
            return [each for each in found if id(each) not in own]
        finally:
            self.seconds += thread_time() - began

    def referents(self, kind: type) -> list[Any]:
        """Return what the objects refer to and is of just this class, tracked or not."""
        began = self._enter()
        try:
            found: dict[int, Any] = {}
            for part in self._parts(began):
                parts = gc.get_referents(*part)
                found.update((id(each), each) for each in parts if type(each) is kind)
            return list(found.values())
        finally:
            self.seconds += thread_time() - began

    def _enter(self) -> float:
        if self.is_exhausted:
            raise SearchEndedError("the time for searches is used up")
        return thread_time()

    def _objects(self) -> list[Any]:
        if self.everything is None:
            unsafe, everything = _with_freed_objects(), gc.get_objects()
            if unsafe is not None:
                everything = list(filter(partial(is_not, unsafe), everything))
            self.everything = everything
        return self.everything

    def _parts(self, began: float) -> Iterator[list[Any]]:
        """Yield all objects, some hundred at once, as long as there is time."""
        everything = self._objects()
        before = self.seconds
        for number, start in enumerate(range(0, len(everything), _AT_ONCE)):
            if number % _PARTS_BETWEEN_LOOKS == 0:
                self.seconds = before + thread_time() - began
                exhausted, self.seconds = self.is_exhausted, before
                if exhausted:
                    raise SearchEndedError("the time for searches is used up")
            yield everything[start : start + _AT_ONCE]
