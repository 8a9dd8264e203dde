"""Which detectors are told of which events, and which of them are awake for it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from gradcheck_suite.auditing.events import Attention

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gradcheck_suite.auditing.events import Detector, Handler

__all__ = ["Listener", "Listeners"]

Listener: TypeAlias = "tuple[Detector, Handler]"
"""A detector, and what of it handles one kind of event."""

_NEVER: Final = sys.maxsize


class Listeners:
    """Knows who listens to each kind of event.

    Attributes:
        awake: for each kind of event, who is to be told of it now, in order.
        due: the first turn at which somebody who sleeps is to be told again.
    """

    def __init__(self) -> None:
        self.awake: dict[type[Any], tuple[Listener, ...]] = {}
        self._all: dict[type[Any], tuple[Listener, ...]] = {}
        self.due = _NEVER
        # By detector: the kinds that it sleeps through, and until which turn.
        self._asleep: dict[Detector, dict[type[Any], int]] = {}
        self._dropped: set[int] = set()

    def add(self, detectors: Iterable[Detector], *, now: bool = True) -> None:
        """Tell these detectors what they ask for, after those that are there.

        From ``now`` on; else only once all are woken.
        """
        everybody = self._all
        for detector in detectors:
            if id(detector) in self._dropped:
                continue
            last: Handler | None = None
            added: tuple[Listener, ...] = ()
            for kind, handle in detector.subscriptions().items():
                # One handler for many kinds is one object less for each.
                if handle is not last:
                    last, added = handle, ((detector, handle),)
                known = everybody.get(kind)
                everybody[kind] = known + added if known else added
        if now:
            self._wake(everybody)

    def clear(self) -> None:
        """Let go of everybody: handlers hold their detectors, and these what holds this."""
        self.awake = {}
        self._all.clear()
        self._asleep.clear()

    def wants(self, kind: type[Any]) -> bool:
        """Return whether any detector reads events of this kind."""
        return bool(self._all.get(kind))

    def wants_any(self, kinds: Iterable[type[Any]]) -> bool:
        """Return whether any detector reads events of one of these kinds."""
        return any(map(self._all.get, kinds))

    def any_following(self) -> bool:
        """Return whether any detector is at something that steps to come have a part in."""
        everybody = {id(each): each for known in self._all.values() for each, _ in known}
        return any(
            follows()
            for each in everybody.values()
            if (follows := getattr(each, "is_following", None)) is not None
        )

    def wake_all(self) -> None:
        """Tell everybody of everything again."""
        self._asleep.clear()
        self.due = _NEVER
        self._wake(self._all)

    def wake_due(self, turn: int) -> None:
        """Tell those again who have asked for it from this turn on."""
        due = {k for kinds in self._asleep.values() for k, until in kinds.items() if until <= turn}
        for kinds in self._asleep.values():
            for kind in due.intersection(kinds):
                if kinds[kind] <= turn:
                    del kinds[kind]
        left = [until for kinds in self._asleep.values() for until in kinds.values()]
        self.due = min(left, default=_NEVER)
        self._wake(due)

    def rouse(self, detector: Detector) -> None:
        """Tell this detector of everything again."""
        self._wake(self._asleep.pop(detector, ()))

    def turn(self, detector: Detector, kind: type[Any], asked: Attention | int) -> None:
        """Do what the handler of this kind of event has asked for its detector."""
        if asked is Attention.AWAKE:
            self.rouse(detector)
            return
        until = asked if isinstance(asked, int) else _NEVER
        sleeps = self._asleep.get(detector)
        if sleeps is None:
            sleeps = self._asleep[detector] = {}
        sleeps[kind] = until
        self.due = min(self.due, until)
        # Most detectors fall asleep soon in each audit: nobody else's turn is worked out again.
        told = self.awake.get(kind, ())
        self.awake[kind] = tuple([each for each in told if each[0] is not detector])

    def drop(self, failed: Detector) -> None:
        """Tell this detector nothing any more."""
        self._dropped.add(id(failed))
        for kind, listeners in self._all.items():
            self._all[kind] = tuple([each for each in listeners if each[0] is not failed])
        self._wake(self._all)

    def replace(self, former: Detector, detectors: Iterable[Detector]) -> None:
        """Tell these detectors, before all others, and one that stood for them no more."""
        others, self._all = self._all, {}
        self.add(detectors, now=False)
        for kind, listeners in others.items():
            kept = tuple([each for each in listeners if each[0] is not former])
            self._all[kind] = self._all.get(kind, ()) + kept
        self._wake(self._all)

    def _wake(self, kinds: Iterable[type[Any]]) -> None:
        asleep, everybody = self._asleep, self._all
        if not asleep:
            if kinds is everybody:
                self.awake = everybody.copy()
            else:
                self.awake.update({kind: everybody[kind] for kind in kinds})
            return
        for kind in kinds:
            sleepers = {each for each, kinds in asleep.items() if kind in kinds}
            self.awake[kind] = tuple(each for each in everybody[kind] if each[0] not in sleepers)
