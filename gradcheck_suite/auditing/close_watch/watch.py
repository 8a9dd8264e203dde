"""When saved tensors are watched line by line, and what that has shown."""

from __future__ import annotations

import os
import sys
import threading
import weakref
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from gradcheck_suite.auditing.call_sites import call_site, kind_of_file
from gradcheck_suite.auditing.close_watch.memory import Change, WatchedMemory, site_of
from gradcheck_suite.auditing.close_watch.monitored import MonitoredLines
from gradcheck_suite.auditing.close_watch.suspects import Suspects
from gradcheck_suite.auditing.close_watch.threads import another_may_have_written
from gradcheck_suite.auditing.close_watch.traced import TracedLines
from gradcheck_suite.auditing.events import Attention

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType

    from torch import Tensor

    from gradcheck_suite.auditing.close_watch.places import Lines, Place, WhenEnded
    from gradcheck_suite.auditing.events import BackwardFinished
    from gradcheck_suite.auditing.packed import Holder
    from gradcheck_suite.auditing.recorder import Recorder

__all__ = ["CloseWatch"]

_MOST_BYTES_OF_ALL = 64 << 20
_MOST_BYTES_OF_SUSPECTS = 1 << 30
_MOST_WORK = 5_000_000
"""Of one watch, in units of about a microsecond."""
_STEPS = 3
_BACKWARDS = 32
_WATCHES = 12

_ACTIVE: weakref.WeakSet[CloseWatch] = weakref.WeakSet()


class CloseWatch:
    """Watches suspects line by line, and names the line after which they were changed.

    Attributes:
        armed: whether lines are followed now.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._outermost_kind = 0
        self._suspects = Suspects()
        self._lock = threading.RLock()
        self._everything = self._names_wanted = self._missed_one = False
        self._began = (0, 0)
        self._watches = 0
        self._not_covered: dict[str, None] = {}
        self.armed = False

    @cached_property
    def _lines(self) -> Lines:
        return _lines(self._line_ended, self._is_watched)

    @cached_property
    def _memory(self) -> WatchedMemory:
        return WatchedMemory(self._change)

    @property
    def mode(self) -> str:
        """Return when to watch, as the options say."""
        options = self._recorder.options
        return options.watch_writers if options.name_writers else "never"

    def begin(self) -> None:
        """Begin to watch everything, if that is asked for."""
        recorder = self._recorder
        if self.mode == "from_start" and recorder.step < recorder.options.checksum_first_steps:
            self._everything = True
            self._arm()

    def end(self) -> None:
        """Stop, because the audit does."""
        self._disarm()

    def hand_over(self, recorder: Recorder) -> None:
        """Ask this recorder from now on."""
        self._recorder = recorder

    def suspect(self, holder: Holder, *, named: bool) -> None:
        """Watch from the end of this backward on what is saved where this tensor was.

        Args:
            holder: of a tensor that was overwritten.
            named: whether a writer took note, which a watch would only confirm.
        """
        if self.mode == "never" or (self._everything and self._memory.watches(holder)):
            return
        self._names_wanted = self._names_wanted or not named
        self._suspects.add(holder)
        self._missed_one = self._missed_one or self.armed

    def settle(self, holder: Holder) -> None:
        """Take note that the writer of such a tensor is known."""
        self._suspects.settle(holder)

    def add(self, holder: Holder) -> None:
        """Watch a tensor that was just saved, with its fingerprint, if it is one to be watched."""
        try:
            with self._lock:
                if self._everything:
                    self._memory.add(holder, most_bytes=_MOST_BYTES_OF_ALL)
                if self._suspects.cover(holder) and not self._memory.watches(holder):
                    self._memory.add(holder, most_bytes=_MOST_BYTES_OF_SUSPECTS)
        except Exception as error:  # noqa: BLE001 - the user's program goes on
            self._fail(error)

    def change_of(self, holder: Holder) -> Change | None:
        """Return the line after which the memory of a watched tensor was changed."""
        return self._memory.change_of(holder)

    def after_backward(self, _event: BackwardFinished) -> Attention | None:
        """Begin or end a watch, between two backwards."""
        recorder = self._recorder
        if not self.armed:
            if not self._suspects or self._watches >= _WATCHES:
                return Attention.ASLEEP
            self._arm()
            return None
        if self._missed_one:
            self._missed_one = False
            self._suspects.begin_watch()
        if self._everything:
            if recorder.step >= recorder.options.checksum_first_steps:
                self._disarm()
            return None
        steps, backwards = recorder.step - self._began[0], recorder.backwards - self._began[1]
        if not self._suspects or steps >= _STEPS or backwards >= _BACKWARDS:
            self._disarm()
        return None

    def not_covered(self) -> list[str]:
        """Say what kept writers from being named."""
        lines = list(self._not_covered) if self._names_wanted else []
        if self._watches and self._memory.left_out:
            lines.append(
                f"the writers of {self._memory.left_out:,} saved tensors: more than "
                f"{_MOST_BYTES_OF_ALL >> 20} MiB are not watched line by line"
            )
        return lines

    def _is_watched(self, code: CodeType) -> bool:
        return kind_of_file[code.co_filename] <= self._outermost_kind

    def _arm(self) -> None:
        recorder = self._recorder
        # A project that is run from site-packages has no other lines than a library's.
        here = call_site()
        self._outermost_kind = 0 if here is None else kind_of_file[here[0].co_filename]
        if not self._lines.start():
            self._not_covered[_STEPPED_ASIDE] = None
            self._everything = False
            self._watches = _WATCHES
            return
        self.armed = True
        self._watches += 1
        self._began = (recorder.step, recorder.backwards)
        self._suspects.begin_watch()
        self._memory.work = 0
        recorder.saved_tensors.take_fingerprints = True
        _ACTIVE.add(self)

    def _disarm(self) -> None:
        if not self.armed:
            return
        self.armed = self._everything = False
        self._lines.stop()
        self._memory.clear()
        self._suspects.end_watch()
        _ACTIVE.discard(self)

    def _line_ended(self, place: Place) -> None:
        memory = self._memory
        if not memory or _is_compiling():
            return
        try:
            with self._lock:
                memory.look(place)
                if memory.work > _MOST_WORK:
                    self._not_covered[_TOO_MUCH_WORK] = None
                    self._disarm()
        except Exception as error:  # noqa: BLE001 - the user's program goes on
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self._disarm()
        self._watches = _WATCHES
        self._recorder.note_failure("the watch over writers", error)

    def _change(self, tensor: Tensor, place: Place | None) -> Change:
        # Other processes may write into shared memory.
        shared = tensor.is_cpu and tensor.is_shared()  # type: ignore[no-untyped-call]  # torch has no types for it
        return Change(
            sequence=self._recorder.clock.tick(),
            site=site_of(place),
            certain=not shared and not another_may_have_written(self._lines.follows),
            in_step=not self._recorder.writers.listening,
        )

    def leave_child(self) -> None:
        """Stop in a child process: what is watched is its parent's business."""
        self._lock = threading.RLock()
        self._disarm()


_is_compiling = torch.compiler.is_compiling

_STEPPED_ASIDE = (
    "the lines of writers that take no note: a debugger or a coverage tool follows the lines of "
    "this program itself (from Python 3.12 on, both can)"
    if sys.version_info < (3, 12)
    else "the lines of writers that take no note: other tools have all numbers of sys.monitoring"
)
_TOO_MUCH_WORK = (
    "the lines of some writers: watching saved tensors line by line had taken seconds and was ended"
)


def _lines(ended: WhenEnded, is_watched: Callable[[CodeType], bool]) -> Lines:
    if hasattr(sys, "monitoring"):
        return MonitoredLines(ended, is_watched)
    return TracedLines(ended, is_watched)


def _leave_child() -> None:
    for watch in tuple(_ACTIVE):
        watch.leave_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_child)
