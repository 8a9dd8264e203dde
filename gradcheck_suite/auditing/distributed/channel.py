"""Write to the store that the ranks of a job share, and read from it, without waiting for it."""

from __future__ import annotations

import os
import queue
import threading
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

__all__ = ["ANSWERS_WITHIN", "Channel"]

_T = TypeVar("_T")

_MOST_WAITING = 1024
"""Calls that wait for a store that does not answer; more are dropped. A bound on memory."""

ANSWERS_WITHIN = 2.0
"""Seconds within which a store that works has answered. Chosen: it takes well below a millisecond
on one machine; what takes longer is told."""

_ASKS_EVERY = 0.05
"""Seconds between two questions after keys that are not there yet. Chosen: short beside the end of
a process, and 20 questions a second are nothing to a store."""


class Channel:
    """A connection of the audit's own to the job's store, used by one thread of its own.

    Nothing here waits longer than it is told to, whatever becomes of the store: the thread does,
    and ends with the process. Only set, add, check and get are asked of the store.

    Args:
        connect: opens the connection.
        prefix: stands before each key.

    Attributes:
        trouble: why the store can't be used, once that is known.
    """

    def __init__(self, connect: Callable[[], Any], prefix: str) -> None:
        self._connect = connect
        self._prefix = prefix
        self._process = os.getpid()
        self._calls: queue.Queue[Callable[[Any], object]] = queue.Queue(_MOST_WAITING)
        self.trouble: str | None = None
        threading.Thread(target=self._serve, name="gradcheck-suite ranks", daemon=True).start()

    def put(self, key: str, value: bytes) -> None:
        """Have ``value`` written; dropped where the store can't be used."""
        self._call(lambda store: store.set(self._prefix + key, value))

    def add(self, key: str, *, seconds: float) -> int | None:
        """Add one to a number of the store's and return it; None if that takes too long."""
        return self._answer(lambda store: int(store.add(self._prefix + key, 1)), seconds)

    def flush(self, *, seconds: float) -> bool:
        """Wait until all is written, so long at most; return whether it is."""
        return self._answer(lambda _: True, seconds) is True

    def get(self, keys: Iterable[str], *, seconds: float) -> Mapping[str, bytes]:
        """Return what there is under these keys, once it is all there or the time is over."""
        found: dict[str, bytes] = {}
        missing = list(keys)
        ends = monotonic() + seconds
        while missing:
            left = max(ends - monotonic(), ANSWERS_WITHIN)
            found.update(self._answer(partial(self._read, tuple(missing)), left) or {})
            missing = [key for key in missing if key not in found]
            if not missing or self.trouble is not None or monotonic() >= ends:
                break
            threading.Event().wait(_ASKS_EVERY)
        return found

    def _read(self, keys: Iterable[str], store: Any) -> dict[str, bytes]:
        return {
            key: bytes(store.get(self._prefix + key))
            for key in keys
            # To get what is not there waits, and tells of it on standard error.
            if store.check([self._prefix + key])
        }

    def _answer(self, ask: Callable[[Any], _T], seconds: float) -> _T | None:
        answers: list[_T] = []
        done = threading.Event()

        def call(store: Any) -> None:
            try:
                answers.append(ask(store))
            finally:
                done.set()

        if not self._call(call):
            return None
        ends = monotonic() + seconds
        # A store in trouble drops its calls.
        while not done.wait(min(_ASKS_EVERY, max(ends - monotonic(), 0.0))):
            if self.trouble is not None or monotonic() >= ends:
                return None
        return answers[0] if answers else None

    def _call(self, call: Callable[[Any], object]) -> bool:
        # The thread is the parent's in a forked child.
        if self.trouble is not None or os.getpid() != self._process:
            return False
        try:
            self._calls.put_nowait(call)
        except queue.Full:
            return False
        return True

    def _serve(self) -> None:
        try:
            store = self._connect()
            while True:
                self._calls.get()(store)
        except Exception as error:  # noqa: BLE001 - the program goes on, and the report says so
            text = str(error).splitlines()
            self.trouble = text[0] if text else type(error).__name__
