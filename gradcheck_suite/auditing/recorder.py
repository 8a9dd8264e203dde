"""Watch a training loop: begin and end it, count its steps, and leave out a part of many."""

from __future__ import annotations

import math
import statistics
import sys
import threading
import weakref
from collections import deque
from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING

from gradcheck_suite._torch_compat import (
    inside_backward,
    push_saved_tensors_hooks,
    remove_saved_tensors_hooks,
    saved_tensors_hooks_are_disabled,
    top_saved_tensors_hooks,
)
from gradcheck_suite.auditing.call_sites import call_site
from gradcheck_suite.auditing.distributed.exchanges import Exchanges
from gradcheck_suite.auditing.distributed.job import Job
from gradcheck_suite.auditing.event_bus import EventBus
from gradcheck_suite.auditing.events import SessionEnded, StepMarked, WatchResumed
from gradcheck_suite.auditing.instrumentation.module_calls import ModuleCalls
from gradcheck_suite.auditing.object_names.frozen import Frozen
from gradcheck_suite.auditing.object_names.heap import Heap
from gradcheck_suite.auditing.object_names.optimizers import Optimizers, Schedules
from gradcheck_suite.auditing.run_state import OptimizerStep, RunState
from gradcheck_suite.auditing.saved_tensors.graph_lifetime import Generations
from gradcheck_suite.auditing.saved_tensors.pack_hooks import SavedTensors
from gradcheck_suite.auditing.saved_tensors.write_log import WriteLog
from gradcheck_suite.auditing.write_tracing import WriteTracer

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch import nn
    from torch.optim import Optimizer

    from gradcheck_suite.auditing.call_sites import CallSite
    from gradcheck_suite.auditing.distributed.children import Children
    from gradcheck_suite.auditing.options import AuditOptions

__all__ = ["Recorder", "StepSampler"]

_BACKWARDS_OF_THE_FIRST_STEP = 32
"""Backwards before any step that are all told of and count as one step; after those, each counts as
an iteration. Chosen; what looks at the first backwards of such programs ends there as well."""

_TOLD_OF = 8
"""After those, in a program without optimizers, each backward of a number that this divides is told
of. A bound on cost: checks of gradients make thousands of short ones."""

_FORGETS_EVERY = 8
"""Steps between two looks for writes that are too old to matter. A bound on cost and on memory:
what is kept meanwhile is bounded besides."""

_MOST_LIVING = 2
"""Generations of graphs that may be alive where a pause begins: that of the loop's variable
``loss``, and one more. With more, graphs may be piling up."""

_FIRST_STEPS = 200
"""So many steps are watched before any is passed over. Chosen: most mistakes show in the first
steps, and what each adds matters in a long loop only."""

_WATCHED = 10
"""So many in a row are watched between pauses: some detectors look at each eighth step only."""

_TRIED = 5
"""So many in a row are passed over to learn how long a step takes then. Chosen: the first is not
timed, and the median of the other four bears one that is off."""

_LONGEST_PAUSE = 40
"""So many in a row are passed over at most. With ``_WATCHED``, a fifth of the steps is still
watched, which brings what is added down to a fifth and no further."""

_ENOUGH_COMPARED = 6
"""Comparisons that are made before any is believed. Chosen: their median bears two that are far
off."""

_COMPARED = 16
"""Comparisons, the latest, whose median counts. Chosen: enough to smooth what one varies by, few
enough to follow a loop that changes."""

_ASKED_AGAIN = 2_000
"""Steps, at most, until a loop that is cheap to watch is asked again; before, as many as it has
had. The six trials, of five steps each, pass over 1.5 % of 2,000."""


class Recorder:
    """What an audit watches with, and when.

    What is replaced in torch, and the detectors, are put together with it by the session. Nothing
    here refers back to what holds it: an audit that is over is gone at once, and the garbage
    collector does not run the more often, through the objects of the program, to find it.

    Attributes:
        options: what to look at and how often.
        state: how far the run has come.
        job: the processes that train together, of which this is one.
        children: audits the processes that the program starts; None where they are only counted.
        exchanges: what this one has sent to the others.
        bus: tells the detectors what happens.
        generations: the graphs of earlier backwards that are still alive.
        optimizers: the optimizers seen so far, and whose each parameter is.
        schedules: the schedulers of their rates, and which were never stepped.
        frozen: what was declared to stay as it is.
        heap: the objects of the process, for those who look for owners.
        module_calls: who listens to the calls of which module.
        write_log: which line last wrote into which memory.
        write_tracer: follows lines where writers take no note.
        saved_tensors: what autograd has saved.
        hooks: the pair that is told of each tensor that it saves.
        configured_at: the user's line that has set up a library that trains; None if none is known.
    """

    def __init__(
        self,
        options: AuditOptions,
        model: nn.Module | None = None,
        optimizers: Iterable[Optimizer] | None = None,
    ) -> None:
        self.options = options
        self.state = state = RunState()
        self.job = Job()
        self.exchanges = Exchanges()
        self.children: Children | None = None
        self.heap = Heap(options.overhead)
        self.bus = bus = EventBus(state, self.heap)
        self.generations = Generations(state.clock)
        self.optimizers = Optimizers(model, optimizers)
        # Whoever sleeps knows all optimizers that there are.
        self.optimizers.on_new = bus.wake_all
        self.schedules = Schedules(bus.wake_all)
        self.frozen = Frozen()
        self.module_calls = ModuleCalls(bus.note_failure)
        self.write_log = WriteLog(bus, state)
        self.write_tracer = WriteTracer(bus, state, self.write_log, options)
        self.saved_tensors = SavedTensors(bus, state, self.write_log, self.write_tracer)
        self.hooks = self.saved_tensors.make_hooks()
        self.configured_at: CallSite | None = None
        self._steps_are_marked = False
        self._sampler = StepSampler(options)
        self._paused_after: weakref.ref[Optimizer] | None = None
        # So much later as the audit was ended in between.
        self._began = self._ended_at = perf_counter()
        self._last_checksums = self._next_checksums = 0
        self._set_fingerprints()

    def start(self) -> None:
        """Begin to watch, on this thread; does nothing once ``max_steps`` are done."""
        state = self.state
        if state.finished:
            return
        state.installed = True
        self.heap.begin()
        state.running = self.write_log.listening = True
        state.is_aside = False
        self._began += perf_counter() - self._ended_at
        self.bus.wake_all()
        state.thread = threading.get_ident()
        if saved_tensors_hooks_are_disabled():
            state.left_hooks = "hooks on them were disabled when the audit began"
        elif top_saved_tensors_hooks() is not None:
            # Ours would replace hooks of the user's that are meant to act on these tensors.
            state.left_hooks = (
                "saved-tensors hooks of yours were active when the audit began, and were left in "
                "charge"
            )
        else:
            push_saved_tensors_hooks(*self.hooks)

    def stop(self) -> None:
        """Watch no more."""
        state = self.state
        if not state.installed:
            return
        state.installed = False
        state.running = self.write_log.listening = False
        state.paused_for = 0
        self._sampler.end()
        self.write_tracer.end()
        self._ended_at = perf_counter()
        self.module_calls.close()
        remove_saved_tensors_hooks(self.hooks)

    def skips_backward(self) -> bool:
        """Return whether nobody is to be told of the backward that begins, before the first step.

        So it is with seven of eight after the first in a program that has no optimizer: checks of
        gradients make thousands, each of less time than it takes to tell of them.
        """
        backwards = self.state.backwards
        return not (
            backwards < _BACKWARDS_OF_THE_FIRST_STEP
            or backwards % _TOLD_OF == 0
            or self.write_tracer.armed
            or self.optimizers.any_known
        )

    def count_backward(self) -> int:
        """Count an outermost backward that begins, and return its number."""
        state = self.state
        number = state.backwards
        state.backwards += 1
        if not state.step and state.backwards > _BACKWARDS_OF_THE_FIRST_STEP:
            self._begin_iteration(state.iteration + 1)
        return number

    def after_optimizer_step(self, optimizer: Optimizer, site: CallSite | None) -> None:
        """Count a finished ``optimizer.step()``."""
        state = self.state
        state.optimizer_steps += 1
        step = state.step if self._steps_are_marked else state.step + 1
        sequence = state.clock.after_step(step)
        state.recent_steps.append(OptimizerStep(sequence, weakref.ref(optimizer), site))

    def end_step(self, optimizer: Optimizer) -> None:
        """Begin the next step, if optimizers count them."""
        if self._steps_are_marked:
            return
        self._next_step()
        if self.state.step >= self._sampler.next and self.state.running:
            self._pause(optimizer)

    def mark_step(self) -> None:
        """Count a step that the program has told of; from now on, only such steps count."""
        self._steps_are_marked = True
        self.state.clock.after_step(self.state.step + 1)
        self.bus.emit(StepMarked(number=self.state.step, site=call_site()))
        self._next_step()

    def _next_step(self) -> None:
        state = self.state
        state.step += 1
        self._sampler.take_time(state.step, perf_counter(), watched=True)
        limit = self.options.max_steps
        if limit is not None and state.step >= limit:
            state.iteration = state.step
            self._finish()
            return
        if state.step % _FORGETS_EVERY == 0:
            self.write_log.forget_before(self.generations.oldest_save)
        self._begin_iteration(state.step)

    def _begin_iteration(self, iteration: int) -> None:
        state = self.state
        # The first step of a program that went on without any until then.
        anew = iteration < state.iteration
        state.iteration = iteration
        if iteration >= self.bus.due:
            self.bus.wake_due(iteration)
        asked = state.take_fingerprints or state.want_fingerprints or self.write_tracer.armed
        if asked or anew or iteration >= self._next_checksums:
            self._set_fingerprints()

    def _set_fingerprints(self) -> None:
        state = self.state
        now = perf_counter()
        share = self.saved_tensors.checksum_seconds / max(now - self._began, 1e-9)
        last = min(self._last_checksums, state.iteration)
        due = self.options.checksums_on(state.iteration, last=last, share=share)
        is_suspicious = state.want_fingerprints or self.write_tracer.armed
        state.take_fingerprints = due or is_suspicious
        state.want_fingerprints = False
        self.saved_tensors.begin_iteration(state.iteration, is_suspicious=is_suspicious)
        if state.take_fingerprints:
            self._last_checksums = state.iteration
        self._next_checksums = self.options.checksums_from(
            state.iteration, last=self._last_checksums
        )

    def _finish(self) -> None:
        """Watch no more: what torch is going through now is taken away when the audit is left."""
        self.bus.emit(SessionEnded(None))
        self.state.finished = True
        self.state.running = self.write_log.listening = False
        self.write_tracer.end()
        remove_saved_tensors_hooks(self.hooks)

    def _pause(self, optimizer: Optimizer) -> None:
        """Watch nothing for some steps, if this is a loop and a time for that."""
        state = self.state
        if not self._may_pause():
            self._sampler.postpone(state.step)
            return
        length = self._sampler.length(state.step)
        if self.options.checksum_every:
            length = min(length, self._next_checksums - state.step)
        if length > 0:
            self._sampler.begin()
            self._paused_after = weakref.ref(optimizer)
            state.paused_for = length
            state.running = self.write_log.listening = False
            remove_saved_tensors_hooks(self.hooks)

    @contextmanager
    def looking_away(self) -> Iterator[None]:
        """Watch nothing of what runs inside, which is no part of the program."""
        state = self.state
        top = top_saved_tensors_hooks()
        is_watching = state.running and threading.get_ident() == state.thread
        has_hooks = is_watching and top is not None and top[0] is self.hooks[0]
        if has_hooks:
            remove_saved_tensors_hooks(self.hooks)
        if is_watching:
            state.running = self.write_log.listening = False
        try:
            yield
        finally:
            # An audit that was opened inside has ended, and this one begun again, if it runs.
            if is_watching and state.installed and not state.running:
                state.running = self.write_log.listening = True
                if has_hooks:
                    push_saved_tensors_hooks(*self.hooks)

    def _may_pause(self) -> bool:
        """Return whether nobody is at anything that the next steps have a part in."""
        state = self.state
        top = top_saved_tensors_hooks()
        return (
            self.generations.living.count <= _MOST_LIVING
            and len(self.optimizers.known()) == 1
            and not (state.take_fingerprints or state.want_fingerprints or self.write_tracer.armed)
            and top is not None
            and top[0] is self.hooks[0]
            and threading.get_ident() == state.thread
            and not inside_backward()
            and not self.bus.any_following()
        )

    def skips_step(self, optimizer: Optimizer) -> bool:
        """Count a finished step that was not watched; False if this is the last of them."""
        state = self.state
        self._sampler.take_time(state.step, perf_counter(), watched=False)
        state.skipped_steps += 1
        known = None if self._paused_after is None else self._paused_after()
        if (state.paused_for == 1 or known is not optimizer) and self.resume():
            return False
        state.paused_for = max(1, state.paused_for - 1)
        state.optimizer_steps += 1
        state.step += 1
        state.iteration = state.step
        return True

    def resume(self) -> bool:
        """Watch again, if the audit pauses; return whether it watches now."""
        state = self.state
        if state.running or not state.paused_for:
            return state.running
        if inside_backward() or threading.get_ident() != state.thread:
            return False
        if saved_tensors_hooks_are_disabled() or top_saved_tensors_hooks() is not None:
            return False
        state.paused_for = 0
        self._sampler.end()
        state.running = self.write_log.listening = True
        push_saved_tensors_hooks(*self.hooks)
        self.bus.emit(WatchResumed())
        return True


class StepSampler:
    """Times steps and says after which of them to pause, and for how many.

    What an audit adds to a step shows in the time that steps take with it and without it, right
    after each other in the same run. Where that is more than it may add, a part of the steps goes
    unwatched, and only so many. Nothing is passed over in the first steps, in which most mistakes
    show.

    Args:
        options: say what the audit may add, and rule out pauses where each step is to be watched.

    Attributes:
        next: the number of finished steps from which on a pause may begin.
    """

    def __init__(self, options: AuditOptions) -> None:
        self._target = options.overhead / 100
        watches_all = options.max_steps is not None or math.isinf(self._target)
        self.next = sys.maxsize if watches_all else _FIRST_STEPS
        self._watched: deque[float] = deque(maxlen=_WATCHED)
        self._passed: list[float] = []
        # What the audit has added to a step by its neighbours, as a part of the time it takes.
        self._added: deque[float] = deque(maxlen=_COMPARED)
        self._last: float | None = None

    def take_time(self, step: int, now: float, *, watched: bool) -> None:
        """Note that the step of this number has ended ``now``, in seconds."""
        if watched and step < self.next - _WATCHED:
            return
        if self._last is not None:
            (self._watched if watched else self._passed).append(now - self._last)
        self._last = now

    def begin(self) -> None:
        """Begin a pause: the next step begins in another way than it ends, and is not timed."""
        self._last = None
        self._passed.clear()

    def end(self) -> None:
        """End a pause, and compare its steps with those before it."""
        self._last = None
        if self._passed and self._watched:
            without = statistics.median(self._passed)
            self._added.append(statistics.median(self._watched) / max(without, 1e-9) - 1)
        self._passed.clear()
        self._watched.clear()

    def length(self, step: int) -> int:
        """Return for how many steps to pause after this one, if at all, and plan the next pause."""
        if len(self._added) < _ENOUGH_COMPARED:
            self.next = step + _TRIED + _WATCHED
            return _TRIED
        added = statistics.median(self._added)
        if added <= self._target:
            self.next = step + min(step, _ASKED_AGAIN)
            self._added.clear()
            self._last = None
            return 0
        length = _LONGEST_PAUSE
        if self._target:
            length = max(1, min(_LONGEST_PAUSE, round(_WATCHED * (added / self._target - 1))))
        self.next = step + length + _WATCHED
        return length

    def postpone(self, step: int) -> None:
        """Ask again some steps later: there can be no pause after this one."""
        self.next = step + _WATCHED
