"""States that were loaded with ``strict=False``, and of which nothing, or nearly, was taken."""

from __future__ import annotations

import weakref
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gradcheck_suite import catalogue
from gradcheck_suite.auditing.call_sites import CallSite, location_of
from gradcheck_suite.auditing.events import StateLoaded
from gradcheck_suite.findings import Finding, Severity
from gradcheck_suite.reporting.text import number, plural

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

    from gradcheck_suite.auditing.events import Subscriptions

__all__ = ["NothingLoadedDetector"]

_NEARLY_NOTHING = 0.1
"""Share of a state's entries that fitted, up to which it is told. Chosen: a new head, or a backbone
out of a larger model, leaves most of one side."""

_LISTED = 3
"""Names of each side in the evidence. Chosen, for length."""


@dataclass(slots=True)
class _Load:
    """A state of which nearly nothing was taken.

    Attributes:
        kind: the class of the module.
        given: how many entries the state had.
        missing: the names that only the module has.
        unexpected: the names that only the state has.
        loaded_later: whether another state was loaded into the same module, and fitted.
    """

    kind: str
    given: int
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    site: CallSite | None
    loaded_later: bool = False

    @property
    def loaded(self) -> int:
        return self.given - len(self.unexpected)


class NothingLoadedDetector:
    """Reports nothing-loaded (GCS413)."""

    def __init__(self) -> None:
        self._loads: dict[CallSite | None, _Load] = {}
        # What was loaded into a module and did not fit.
        self._waiting: weakref.WeakKeyDictionary[nn.Module, list[_Load]] = (
            weakref.WeakKeyDictionary()
        )

    def subscriptions(self) -> Subscriptions:
        """Look at each state that is loaded."""
        return {StateLoaded: self._load}

    def _load(self, event: StateLoaded) -> None:
        loaded = event.given - len(event.unexpected)
        most = _NEARLY_NOTHING * min(event.given, loaded + len(event.missing))
        if not event.missing or loaded > most:
            for load in self._waiting.pop(event.module, ()):
                load.loaded_later = True
            return
        if event.site not in self._loads:
            load = _Load(
                type(event.module).__name__,
                event.given,
                event.missing,
                event.unexpected,
                event.site,
            )
            self._loads[event.site] = load
            self._waiting.setdefault(event.module, []).append(load)

    def findings(self) -> list[Finding]:
        """Return one finding for each line that loads."""
        return list(map(_finding, self._loads.values()))


def _finding(load: _Load) -> Finding:
    entries = load.loaded + len(load.missing)
    taken = f"{load.loaded} of" if load.loaded else "none of"
    doubts = ["a state that fits was loaded into it later"] if load.loaded_later else []
    hint = "compare the names: load_state_dict(...) returns those that did not fit"
    if not load.given:
        what = "the state that it was given is empty"
        expected = "expected a state with entries"
    else:
        what = (
            f"{_named(load.unexpected)} of the state are not the module's, which has "
            f"{_named(load.missing)} instead"
        )
        expected = "expected names that fit"
        prefixes = _prefixes(load.unexpected, load.missing)
        if prefixes is not None:
            theirs, own = prefixes
            expected = f"expected `{own}` where they have `{theirs}`"
            if not own:
                expected = f"expected them without `{theirs}`"
            elif not theirs:
                expected = f"expected them to begin with `{own}`"
            renamed = f'name.removeprefix("{theirs}")' if theirs else "name"
            added = f'"{own}" + ' if own else ""
            hint = f"{{{added}{renamed}: value for name, value in state.items()}}"
    return Finding.of(
        catalogue.NOTHING_LOADED,
        f"load_state_dict() has loaded {taken} the {plural(entries, 'entry', 'entries')} of "
        f"{load.kind}, which stay as they were: {what}; {expected}",
        detector="audit",
        # A first run may have nothing to come back to.
        severity=None if load.given else Severity.NOTE,
        doubts=doubts if load.given else (),
        location=location_of(load.site),
        hint=hint,
        evidence={
            "loaded": load.loaded,
            "given": load.given,
            "missing": list(load.missing[:_LISTED]),
            "unexpected": list(load.unexpected[:_LISTED]),
        },
    )


def _named(names: tuple[str, ...]) -> str:
    """Return the first of these names, and how many more there are."""
    more = len(names) - 1
    return f"`{names[0]}`" + (f" and {number(more)} more" if more else "")


def _prefixes(names: tuple[str, ...], others: tuple[str, ...]) -> tuple[str, str] | None:
    """Return what most of ``names`` begin with, and what as many of ``others`` have there."""
    prefixes = {suffix: prefix for other in others for prefix, suffix in _splits(other)}
    pairs = Counter(
        next(
            ((prefix, prefixes[suffix]) for prefix, suffix in _splits(name) if suffix in prefixes),
            None,
        )
        for name in names
    )
    best, count = pairs.most_common(1)[0]
    return best if 2 * count > min(len(names), len(others)) else None


def _splits(name: str) -> Iterator[tuple[str, str]]:
    """Yield a dotted name in two parts, the longest second part first."""
    end = 0
    while True:
        yield name[:end], name[end:]
        end = name.find(".", end) + 1
        if not end:
            return
