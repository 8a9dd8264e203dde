"""Which detectors are told of which events, and which of them are awake for it."""

from __future__ import annotations

import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from gradcheck_suite._torch_compat import function_mode_is_active, without_torch_function
from gradcheck_suite.auditing.events import Attention, SavedTensorCorrupted, SavedTensorModified

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from gradcheck_suite.auditing.events import Detector, Event, Handler, Subscriptions
    from gradcheck_suite.auditing.object_names.heap import Heap
    from gradcheck_suite.auditing.run_state import RunState

__all__ = ["EventBus"]

_Listener: TypeAlias = "tuple[Detector, Handler]"
"""A detector, and what of it handles one kind of event."""

_NEVER: Final = sys.maxsize
# A tensor saved in a step that was watched may be used in one that is not.
_TOLD_WHILE_PAUSED = (SavedTensorModified, SavedTensorCorrupted)


class EventBus:
    """Tells detectors what happens, each the kinds of events that it asks for, in order.

    A handler that has nothing to wait for may sleep, and is not called. A mistake in a detector
    must not reach the user's program: it is kept in ``failures``, and that detector is told
    nothing more.

    Args:
        state: says whether the audit watches now.
        heap: what detectors have found there is forgotten after each event.

    Attributes:
        failures: our own mistakes, for the report.
        due: the first iteration at which somebody who sleeps is to be told again.
    """

    def __init__(self, state: RunState, heap: Heap) -> None:
        self._state = state
        self._heap = heap
        self.failures: list[str] = []
        # For each kind of event that was told of, who is to be told of it now.
        self._awake: dict[type[Any], tuple[_Listener, ...]] = {}
        self._subscribed: list[tuple[Detector, Subscriptions]] = []
        # By detector: the kinds that it sleeps through, and until which iteration.
        self._asleep: dict[Detector, dict[type[Any], int]] = {}
        self.due = _NEVER
        self._deferred: Callable[[], Iterable[Detector]] | None = None
        self._deferred_kinds: Collection[type[Any]] = ()
        self._dropped: set[int] = set()
        self._lock = threading.RLock()

    def subscribe(self, detectors: Iterable[Detector]) -> None:
        """Tell these detectors, from now until ``clear``, the events that they ask for."""
        for detector in detectors:
            if id(detector) not in self._dropped:
                self._subscribed.append((detector, detector.subscriptions()))
        self._awake.clear()

    def defer(self, make: Callable[[], Iterable[Detector]], kinds: Collection[type[Any]]) -> None:
        """Make detectors, which are told before all others, once there is such an event.

        Many a test of a suite has none.
        """
        self._deferred, self._deferred_kinds = make, kinds

    def make_deferred(self) -> None:
        """Make the detectors that wait for an event."""
        make, self._deferred = self._deferred, None
        self._deferred_kinds = ()
        if make is not None:
            others, self._subscribed = self._subscribed, []
            self.subscribe(make())
            self._subscribed += others

    def clear(self) -> None:
        """Let go of everybody: handlers hold their detectors, and these what holds this."""
        self._awake.clear()
        self._subscribed.clear()
        self._asleep.clear()
        self._deferred = None

    def wants(self, kind: type[Any]) -> bool:
        """Return whether any detector reads events of this kind."""
        return kind in self._deferred_kinds or any(kind in asked for _, asked in self._subscribed)

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

    def emit(self, event: Event) -> None:
        """Tell the detectors that read this kind of event and are awake."""
        listeners = self._awake.get(type(event))
        if listeners == ():
            return
        state = self._state
        if not state.running and not (state.paused_for and isinstance(event, _TOLD_WHILE_PAUSED)):
            return
        with self._locked_outside_user_modes() if function_mode_is_active() else self._lock:
            if listeners is None:
                listeners = self._listeners_of(type(event))
            for detector, handle in listeners:
                try:
                    asked = handle(event)
                except Exception as error:  # noqa: BLE001, PERF203 - the user's program goes on
                    self._drop(detector)
                    self.note_failure(type(detector).__name__, error)
                else:
                    if asked is not None:
                        self._turn_to(detector, type(event), asked)
        if self._heap.everything is not None:
            self._heap.forget()

    @contextmanager
    def _locked_outside_user_modes(self) -> Iterator[None]:
        """Lock, where what detectors ask of tensors is none of the business of a user's modes."""
        with self._lock, without_torch_function():
            yield

    def _listeners_of(self, kind: type[Any]) -> tuple[_Listener, ...]:
        """Work out who is to be told of a kind of event now.

        A short program has few kinds of events: nobody asks for the others.
        """
        if kind in self._deferred_kinds:
            try:
                self.make_deferred()
            except Exception as error:  # noqa: BLE001 - the user's program goes on
                self.note_failure("the detectors", error)
        asleep = self._asleep
        told = self._awake[kind] = tuple(
            [
                (detector, asked[kind])
                for detector, asked in self._subscribed
                if kind in asked and not (detector in asleep and kind in asleep[detector])
            ]
        )
        return told

    def note_failure(self, where: str, error: Exception) -> None:
        """Keep a mistake of ours for the report."""
        self.failures.append(f"{where}: {type(error).__name__}: {error}")

    def wake_all(self) -> None:
        """Tell everybody of everything again."""
        with self._lock:
            self._asleep.clear()
            self.due = _NEVER
            self._awake.clear()

    def wake_due(self, iteration: int) -> None:
        """Tell those again who have asked for it from this iteration on."""
        with self._lock:
            asleep = self._asleep.values()
            due = {k for kinds in asleep for k, until in kinds.items() if until <= iteration}
            for kinds in asleep:
                for kind in due.intersection(kinds):
                    if kinds[kind] <= iteration:
                        del kinds[kind]
            for kind in due:
                self._awake.pop(kind, None)
            left = [until for kinds in asleep for until in kinds.values()]
            self.due = min(left, default=_NEVER)

    def _turn_to(self, detector: Detector, kind: type[Any], asked: Attention | int) -> None:
        """Do what the handler of this kind of event has asked for its detector."""
        if asked is Attention.AWAKE:
            for each in self._asleep.pop(detector, ()):
                self._awake.pop(each, None)
            return
        until = asked if isinstance(asked, int) else _NEVER
        sleeps = self._asleep.get(detector)
        if sleeps is None:
            sleeps = self._asleep[detector] = {}
        sleeps[kind] = until
        self.due = min(self.due, until)
        # Most detectors fall asleep soon in each audit: nobody else's part is worked out again.
        told = self._awake.get(kind)
        if told is not None:
            self._awake[kind] = tuple([each for each in told if each[0] is not detector])

    def _drop(self, failed: Detector) -> None:
        """Tell this detector nothing any more."""
        self._dropped.add(id(failed))
        self._subscribed = [each for each in self._subscribed if each[0] is not failed]
        self._awake.clear()
