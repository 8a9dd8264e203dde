"""Which detectors are told of which events, and which of them are awake for it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from gradcheck_suite.auditing.events import Attention

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gradcheck_suite.auditing.events import Detector, Handler, Subscriptions

__all__ = ["Listener", "Listeners"]

Listener: TypeAlias = "tuple[Detector, Handler]"
"""A detector, and what of it handles one kind of event."""

_NEVER: Final = sys.maxsize


class Listeners:
    """Knows who listens to each kind of event.

    Attributes:
        awake: for each kind of event that ``awaken`` was asked for, who is to be told of it now, in
            order.
        due: the first turn at which somebody who sleeps is to be told again.
    """

    def __init__(self) -> None:
        self.awake: dict[type[Any], tuple[Listener, ...]] = {}
        self.due = _NEVER
        self._subscribed: list[tuple[Detector, Subscriptions]] = []
        # By detector: the kinds that it sleeps through, and until which turn.
        self._asleep: dict[Detector, dict[type[Any], int]] = {}
        self._dropped: set[int] = set()

    def add(self, detectors: Iterable[Detector]) -> None:
        """Tell these detectors what they ask for, after those that are there."""
        for detector in detectors:
            if id(detector) not in self._dropped:
                self._subscribed.append((detector, detector.subscriptions()))
        self.awake.clear()

    def awaken(self, kind: type[Any]) -> tuple[Listener, ...]:
        """Work out who is to be told of a kind of event now.

        A short program has few kinds of events: nobody asks for the others.
        """
        asleep = self._asleep
        told = self.awake[kind] = tuple(
            [
                (detector, asked[kind])
                for detector, asked in self._subscribed
                if kind in asked and not (detector in asleep and kind in asleep[detector])
            ]
        )
        return told

    def clear(self) -> None:
        """Let go of everybody: handlers hold their detectors, and these what holds this."""
        self.awake.clear()
        self._subscribed.clear()
        self._asleep.clear()

    def wants(self, kind: type[Any]) -> bool:
        """Return whether any detector reads events of this kind."""
        return any(kind in asked for _, asked in self._subscribed)

    def wants_any(self, kinds: Iterable[type[Any]]) -> bool:
        """Return whether any detector reads events of one of these kinds."""
        return any(map(self.wants, kinds))

    def any_following(self) -> bool:
        """Return whether any detector is at something that steps to come have a part in."""
        return any(
            follows()
            for each, _ in self._subscribed
            if (follows := getattr(each, "is_following", None)) is not None
        )

    def wake_all(self) -> None:
        """Tell everybody of everything again."""
        self._asleep.clear()
        self.due = _NEVER
        self.awake.clear()

    def wake_due(self, iteration: int) -> None:
        """Tell those again who have asked for it from this turn on."""
        due = {
            k for kinds in self._asleep.values() for k, until in kinds.items() if until <= iteration
        }
        for kinds in self._asleep.values():
            for kind in due.intersection(kinds):
                if kinds[kind] <= iteration:
                    del kinds[kind]
        left = [until for kinds in self._asleep.values() for until in kinds.values()]
        self.due = min(left, default=_NEVER)
        self._wake(due)

    def rouse(self, detector: Detector) -> None:
        """Tell this detector of everything again."""
        self._wake(self._asleep.pop(detector, ()))

    def iteration(self, detector: Detector, kind: type[Any], asked: Attention | int) -> None:
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
        told = self.awake.get(kind)
        if told is not None:
            self.awake[kind] = tuple([each for each in told if each[0] is not detector])

    def drop(self, failed: Detector) -> None:
        """Tell this detector nothing any more."""
        self._dropped.add(id(failed))
        self._subscribed = [each for each in self._subscribed if each[0] is not failed]
        self.awake.clear()

    def replace(self, former: Detector, detectors: Iterable[Detector]) -> None:
        """Tell these detectors, before all others, and one that stood for them no more."""
        others, self._subscribed = self._subscribed, []
        self.add(detectors)
        self._subscribed += [each for each in others if each[0] is not former]

    def _wake(self, kinds: Iterable[type[Any]]) -> None:
        for kind in kinds:
            self.awake.pop(kind, None)
