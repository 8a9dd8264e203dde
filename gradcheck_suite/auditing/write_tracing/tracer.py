"""When saved tensors are watched line by line, and what that has shown."""

from __future__ import annotations

import os
import sys
import threading
import weakref
from functools import cached_property
from pathlib import PurePath
from typing import TYPE_CHECKING, TypeAlias

import torch

from gradcheck_suite._runtime.frames import Owner, owner_of_file
from gradcheck_suite.auditing.call_sites import call_site, kind_of_file
from gradcheck_suite.auditing.events import Attention
from gradcheck_suite.auditing.write_tracing.lines import MonitoredLines, TracedLines
from gradcheck_suite.auditing.write_tracing.memory import Change, WatchedMemory, site_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType

    from torch import Tensor

    from gradcheck_suite.auditing.call_sites import CallSite
    from gradcheck_suite.auditing.event_bus import EventBus
    from gradcheck_suite.auditing.events import BackwardFinished
    from gradcheck_suite.auditing.options import AuditOptions
    from gradcheck_suite.auditing.run_state import RunState
    from gradcheck_suite.auditing.saved_tensors.saved_tensor import PackedTensor
    from gradcheck_suite.auditing.saved_tensors.write_log import WriteLog
    from gradcheck_suite.auditing.write_tracing.lines import Lines, Place, WhenEnded

__all__ = ["Suspects", "WriteTracer", "another_may_have_written"]

_MOST_BYTES_OF_ALL = 64 << 20
"""Bytes of saved tensors that are watched where all are, 64 MiB. A bound on cost: each line of the
program compares them; the report says how many were left out."""

_MOST_BYTES_OF_SUSPECTS = 1 << 30
"""Bytes that are watched where only suspects are, 1 GiB. A bound on cost, loose: one of them is
known to be overwritten, and ``_MOST_WORK`` ends what takes too long."""

_MOST_WORK = 5_000_000
"""Of one watch, in units of about a microsecond: some seconds. A bound on cost; the report says
that the watch was given up."""

_STEPS = 3
"""Steps after which a watch ends, if the writer was not found. A bound on cost; of a writer that
comes every step, the first is enough."""

_BACKWARDS = 32
"""Backwards after which it ends as well, for programs that never step: as many as
``_BACKWARDS_OF_THE_FIRST_STEP`` of the recorder."""

_WATCHES = 12
"""Watches in all. A bound on cost: enough for four lines that save what is overwritten, each
watched in the three ways of ``Suspects``."""

_ACTIVE: weakref.WeakSet[WriteTracer] = weakref.WeakSet()


class WriteTracer:
    """Watches suspects line by line, and names the line after which they were changed.

    Attributes:
        armed: whether lines are followed now.
    """

    def __init__(
        self, bus: EventBus, state: RunState, write_log: WriteLog, options: AuditOptions
    ) -> None:
        self._bus = bus
        self._state = state
        self._write_log = write_log
        self._options = options
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
        return self._options.watch_writers if self._options.name_writers else "never"

    def begin(self) -> None:
        """Begin to watch everything, if that is asked for."""
        if self.mode == "from_start" and self._state.step < self._options.checksum_first_steps:
            self._everything = True
            self._arm()

    def end(self) -> None:
        """Stop, because the audit does."""
        self._disarm()

    def suspect(self, packed: PackedTensor, *, named: bool) -> None:
        """Watch from the end of this backward on what is saved where this tensor was.

        Args:
            packed: of a tensor that was overwritten.
            named: whether a writer took note, which a watch would only confirm.
        """
        if self.mode == "never" or (self._everything and self._memory.watches(packed)):
            return
        self._names_wanted = self._names_wanted or not named
        self._suspects.add(packed)
        self._missed_one = self._missed_one or self.armed

    def settle(self, packed: PackedTensor) -> None:
        """Take note that the writer of such a tensor is known."""
        self._suspects.settle(packed)

    def add(self, packed: PackedTensor) -> None:
        """Watch a tensor that was just saved, with its fingerprint, if it is one to be watched."""
        try:
            with self._lock:
                if self._everything:
                    self._memory.add(packed, most_bytes=_MOST_BYTES_OF_ALL)
                if self._suspects.cover(packed) and not self._memory.watches(packed):
                    self._memory.add(packed, most_bytes=_MOST_BYTES_OF_SUSPECTS)
        except Exception as error:  # noqa: BLE001 - the user's program goes on
            self._fail(error)

    def change_of(self, packed: PackedTensor) -> Change | None:
        """Return the line after which the memory of a watched tensor was changed."""
        return self._memory.change_of(packed)

    def after_backward(self, _event: BackwardFinished) -> Attention | None:
        """Begin or end a watch, between two backwards."""
        state = self._state
        if not self.armed:
            if not self._suspects or self._watches >= _WATCHES:
                return Attention.ASLEEP
            self._arm()
            return None
        if self._missed_one:
            self._missed_one = False
            self._suspects.begin_watch()
        if self._everything:
            if state.step >= self._options.checksum_first_steps:
                self._disarm()
            return None
        steps, backwards = state.step - self._began[0], state.backwards - self._began[1]
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
        self._began = (self._state.step, self._state.backwards)
        self._suspects.begin_watch()
        self._memory.work = 0
        self._state.take_fingerprints = True
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
        self._bus.note_failure("the watch over writers", error)

    def _change(self, tensor: Tensor, place: Place | None) -> Change:
        # Other processes may write into shared memory.
        shared = tensor.is_cpu and tensor.is_shared()  # type: ignore[no-untyped-call]  # torch has no types for it
        return Change(
            sequence=self._state.clock.tick(),
            site=site_of(place),
            certain=not shared and not another_may_have_written(self._lines.follows),
            in_step=not self._write_log.listening,
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


_Kind: TypeAlias = "tuple[torch.Size, torch.dtype]"
_ALL_OF_THE_LINE = 2
"""The number of the watch, from 1, that is over all that the suspected line saves: the second."""

_EVERYTHING = 3
"""The number of the watch, from 1, that is over everything, and the last: the third."""


class Suspects:
    """The tensors that somebody unseen has overwritten, by the line that saved them.

    A line of a loop saves many tensors, and not the same ones on every turn: the first watch is
    over those of the same shape and type, the second over all that the line saves, the third and
    last over everything.
    """

    def __init__(self) -> None:
        self._open: dict[CallSite | None, set[_Kind]] = {}
        self._watches: dict[CallSite | None, int] = {}
        self._settled: set[tuple[CallSite | None, _Kind]] = set()

    def __bool__(self) -> bool:
        return bool(self._open)

    def add(self, packed: PackedTensor) -> None:
        """Suspect what is saved like this tensor, unless it was watched often enough."""
        site, kind = packed.site, _kind_of(packed)
        if self._watches.get(site, 0) < _EVERYTHING and (site, kind) not in self._settled:
            self._open.setdefault(site, set()).add(kind)

    def settle(self, packed: PackedTensor) -> None:
        """Let go of what is saved like this tensor: its writer is known."""
        site, kind = packed.site, _kind_of(packed)
        self._settled.add((site, kind))
        kinds = self._open.get(site)
        if kinds is None:
            return
        kinds.discard(kind)
        # Shapes that change from turn to turn are one suspect.
        if not kinds or self._watches.get(site, 0) >= _ALL_OF_THE_LINE:
            del self._open[site]

    def begin_watch(self) -> None:
        """Count a watch over all that are suspected, which begins or has missed one."""
        for site in self._open:
            self._watches[site] = self._watches.get(site, 0) + 1

    def end_watch(self) -> None:
        """Let go of those that are still not settled; they are suspected anew when they recur."""
        self._open.clear()

    def cover(self, packed: PackedTensor) -> bool:
        """Return whether a tensor that was just saved is to be watched."""
        kinds = self._open.get(packed.site)
        if kinds is not None and (
            self._watches.get(packed.site, 0) >= _ALL_OF_THE_LINE or _kind_of(packed) in kinds
        ):
            return True
        return any(self._watches.get(site, 0) >= _EVERYTHING for site in self._open)


def _kind_of(packed: PackedTensor) -> _Kind:
    return packed.tensor.shape, packed.tensor.dtype


_WAITING = frozenset(
    {
        "asyncio",
        "concurrent",
        "multiprocessing",
        "queue.py",
        "selectors.py",
        "socket.py",
        "socketserver.py",
        "ssl.py",
        "subprocess.py",
        "threading.py",
    }
)
_POOLS = ("concurrent/futures/thread.py", "multiprocessing/pool.py")


def another_may_have_written(follows: Callable[[int], bool]) -> bool:
    """Return whether a thread other than this one may have written since this one last looked.

    Threads that run nothing of the user's (a progress bar's, a kernel's) do not count, but the
    workers of a pool do. One inside those parts of the standard library that wait (for a lock, a
    queue, a socket) is idle. It may have been at work a moment before: if its lines are followed,
    it has looked itself by then.

    Args:
        follows: whether the lines of the thread of this number are followed.
    """
    own = threading.get_ident()
    return any(
        _works_for_the_user(frame) and not (_is_waiting(frame) and follows(thread))
        for thread, frame in sys._current_frames().items()  # noqa: SLF001 - its public name
        if thread != own
    )


def _is_waiting(frame: FrameType) -> bool:
    name = frame.f_code.co_filename
    return owner_of_file(name) is Owner.PYTHON and not _WAITING.isdisjoint(PurePath(name).parts)


def _works_for_the_user(innermost: FrameType) -> bool:
    frame: FrameType | None = innermost
    while frame is not None:
        name = frame.f_code.co_filename
        if owner_of_file(name) is Owner.USER or name.replace("\\", "/").endswith(_POOLS):
            return True
        frame = frame.f_back
    return False
