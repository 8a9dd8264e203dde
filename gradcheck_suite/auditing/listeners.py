"""Which detectors are told of which events, and which of them are awake for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from gradcheck_suite.auditing.events import Attention

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gradcheck_suite.auditing.events import Detector

__all__ = ["Listener", "Listeners"]

Listener: TypeAlias = "tuple[Detector, Callable[[Any], Attention | None]]"
"""A detector, and what of it handles one kind of event."""


class Listeners:
    """Knows who listens to each kind of event.

    Attributes:
        awake: for each kind of event, who is to be told of it now, in order.
    """

    def __init__(self) -> None:
        self.awake: dict[type[Any], tuple[Listener, ...]] = {}
        self._all: dict[type[Any], list[Listener]] = {}
        # By detector: the kinds that it sleeps through.
        self._asleep: dict[int, set[type[Any]]] = {}
        self._dropped: set[int] = set()

    def add(self, detectors: Iterable[Detector]) -> None:
        """Tell these detectors what they ask for, after those that are there."""
        everybody = self._all
        for detector in detectors:
            if id(detector) in self._dropped:
                continue
            for kind, handle in detector.subscriptions().items():
                listener = (detector, handle)
                if kind in everybody:
                    everybody[kind].append(listener)
                else:
                    everybody[kind] = [listener]
        self._wake(everybody)

    def clear(self) -> None:
        """Let go of everybody: handlers hold their detectors, and these what holds this."""
        self.awake = {}
        self._all.clear()
        self._asleep.clear()

    def wants(self, kind: type[Any]) -> bool:
        """Return whether any detector reads events of this kind."""
        return bool(self._all.get(kind))

    def wake_all(self) -> None:
        """Tell everybody of everything again."""
        self._asleep.clear()
        self._wake(self._all)

    def turn(self, detector: Detector, kind: type[Any], asked: Attention) -> None:
        """Do what the handler of this kind of event has asked for its detector."""
        if asked is Attention.ASLEEP:
            self._asleep.setdefault(id(detector), set()).add(kind)
            self._wake((kind,))
        else:
            self._wake(self._asleep.pop(id(detector), ()))

    def drop(self, failed: Detector) -> None:
        """Tell this detector nothing any more."""
        self._dropped.add(id(failed))
        for kind, listeners in self._all.items():
            self._all[kind] = [each for each in listeners if each[0] is not failed]
        self._wake(self._all)

    def _wake(self, kinds: Iterable[type[Any]]) -> None:
        asleep = self._asleep
        for kind in kinds:
            listeners = self._all[kind]
            self.awake[kind] = tuple(
                [each for each in listeners if kind not in asleep.get(id(each[0]), ())]
                if asleep
                else listeners
            )
