"""Watch a training loop and turn it into one ordered stream of events."""

from __future__ import annotations

import threading
import weakref
from collections import Counter, deque
from contextlib import contextmanager
from functools import cache, partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

from gradcheck_suite._torch_compat import (
    function_mode_is_active,
    inside_backward,
    push_saved_tensors_hooks,
    remove_saved_tensors_hooks,
    saved_tensors_hooks_are_disabled,
    top_saved_tensors_hooks,
    without_torch_function,
)
from gradcheck_suite.auditing.call_sites import CallSite, call_site
from gradcheck_suite.auditing.event_bus import Listeners
from gradcheck_suite.auditing.events import (
    SavedTensorCorrupted,
    SavedTensorModified,
    SessionEnded,
    StepMarked,
    WatchResumed,
)
from gradcheck_suite.auditing.instrumentation.install import installation
from gradcheck_suite.auditing.instrumentation.module_calls import ModuleCalls
from gradcheck_suite.auditing.object_names.frozen import Frozen
from gradcheck_suite.auditing.object_names.heap import Heap
from gradcheck_suite.auditing.object_names.optimizers import Optimizers
from gradcheck_suite.auditing.options import AuditOptions
from gradcheck_suite.auditing.run_state import Clock
from gradcheck_suite.auditing.sampling import StepSampler
from gradcheck_suite.auditing.saved_tensors.graph_lifetime import Generations
from gradcheck_suite.auditing.saved_tensors.pack_hooks import SavedTensors
from gradcheck_suite.auditing.saved_tensors.write_log import WriteLog
from gradcheck_suite.auditing.write_tracing import WriteTracer

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from torch import nn
    from torch.optim import Optimizer

    from gradcheck_suite.auditing.events import Detector, Event
    from gradcheck_suite.auditing.instrumentation.install import Installation

__all__ = ["OptimizerStep", "Recorder"]

_KEPT_STEPS = 256
_BACKWARDS_OF_THE_FIRST_STEP = 32
_TOLD_OF = 8
_FORGETS_EVERY = 8
_MOST_LIVING = 2
# A tensor saved in a step that was watched may be used in one that is passed over.
_HEARD_AT_REST = (SavedTensorModified, SavedTensorCorrupted)


class OptimizerStep(NamedTuple):
    """A finished step, for telling which optimizer wrote a parameter and where."""

    sequence: int
    optimizer: weakref.ref[Optimizer]
    site: CallSite | None


class Failures(list[str]):
    """Our own mistakes, for the report."""

    def note(self, where: str, error: Exception) -> None:
        """Keep one."""
        self.append(f"{where}: {type(error).__name__}: {error}")


class Recorder:
    """Installs what watches, takes it away again, and tells the detectors what happened.

    A mistake in a detector must not reach the user's program: it is kept in ``failures``, and
    that detector hears nothing more.

    Attributes:
        clock: the one count that orders saves, writes, steps and backwards.
        step: the number of finished steps.
        turn: how far the run has come, for deciding how closely to look at it: the step, and in a
            program that goes on without any, such as a test, the backwards.
        optimizer_steps: the number of finished ``optimizer.step()``, whatever counts as a step.
        backwards: the number of outermost backwards begun.
        optimizers: the optimizers seen so far, and whose each parameter is.
        frozen: what was declared to stay as it is.
        heap: the objects of the process, for those who look for owners.
        module_calls: who listens to the calls of which module.
        is_aside: whether hooks on saved tensors are to be put back when the backward has ended.
        children: how many child processes were started, by what started them.
        left_hooks: why saved tensors are not audited; None where they are.
        running: whether the audit watches now.
        resting: for how many more steps it does not, of its own accord.
        passed_over: the number of finished steps that it has not watched.
        installed: whether anything of torch is replaced.
        finished: whether as many steps are done as were to be watched.
    """

    def __init__(
        self,
        options: AuditOptions,
        model: nn.Module | None = None,
        optimizers: Iterable[Optimizer] | None = None,
    ) -> None:
        self.options = options
        self.clock = Clock()
        self.step = self.iteration = 0
        self.optimizer_steps = 0
        self.backwards = 0
        self.running = self.installed = self.finished = self.is_aside = False
        self.resting = self.passed_over = 0
        self.failures = Failures()
        self.hook_regions = 0
        self.transform_regions = 0
        self.backwards_elsewhere = 0
        self.children: Counter[str] = Counter()
        self.left_hooks: str | None = None
        self.generations = Generations(self.clock)
        self.optimizers = Optimizers(model, optimizers)
        self.frozen = Frozen()
        self.heap = Heap(options.overhead)
        self.module_calls = ModuleCalls(self.failures.note)
        self.write_log = WriteLog(self)
        self.write_tracer = WriteTracer(self)
        self.saved_tensors = SavedTensors(self)
        self.recent_steps: deque[OptimizerStep] = deque(maxlen=_KEPT_STEPS)
        self.thread = 0
        self._listeners = Listeners()
        self._steps_are_marked = False
        self._rests = StepSampler(options)
        self._rests_after: weakref.ref[Optimizer] | None = None
        self._installation: Installation | None = None
        self._lock = threading.RLock()
        # Whoever sleeps knows all optimizers that there are.
        self.optimizers.on_new = partial(_under, self._lock, self._listeners.wake_all)
        # So much later as the audit has rested in between.
        self._began = self._rested_since = perf_counter()
        self._last_checksums = self._next_checksums = 0
        self._set_fingerprints()

    def subscribe(self, detectors: Iterable[Detector]) -> None:
        """Tell these detectors, from now until ``forget``, the events that they ask for."""
        self._listeners.add(detectors)

    def replace(self, former: Detector, detectors: Iterable[Detector]) -> None:
        """Tell these detectors, before all others, and one that stood for them no more."""
        self._listeners.replace(former, detectors)

    def forget(self) -> None:
        """Let go of all detectors: nothing refers back to an audit that is over."""
        self._listeners.clear()

    def dissolve(self) -> None:
        """Break the cycles of an audit that nobody can ask anything any more.

        What graphs and other threads still have of it goes on to work, and finds that nobody
        listens. All else is gone at once: the garbage collector need not find it, and does not run
        the more often, and through the objects of the program, for it.
        """
        idle = _idle()
        for part in (self.write_log, self.write_tracer, self.saved_tensors):
            part.hand_over(idle)
        self.generations.forget()

    def wants(self, kind: type[Any]) -> bool:
        """Return whether any detector reads events of this kind."""
        return self._listeners.wants(kind)

    def wants_any(self, kinds: Iterable[type[Any]]) -> bool:
        """Return whether any detector reads events of one of these kinds."""
        return self._listeners.wants_any(kinds)

    def start(self) -> None:
        """Begin to watch, on this thread; does nothing once ``max_steps`` are done."""
        if self.finished:
            return
        self.installed = True
        self.heap.begin()
        self.running = self.write_log.listening = True
        self.is_aside = False
        self._began += perf_counter() - self._rested_since
        self._listeners.wake_all()
        self.thread = threading.get_ident()
        if saved_tensors_hooks_are_disabled():
            self.left_hooks = "hooks on them were disabled when the audit began"
        elif top_saved_tensors_hooks() is not None:
            # Ours would replace hooks of the user's that are meant to act on these tensors.
            self.left_hooks = (
                "saved-tensors hooks of yours were active when the audit began, and were left in "
                "charge"
            )
        else:
            push_saved_tensors_hooks(*self.saved_tensors.hooks)
        self._installation = installation()
        self._installation.begin(self)
        self.write_tracer.begin()

    def stop(self) -> None:
        """Take everything away again."""
        if not self.installed:
            return
        self.installed = False
        self.running = self.write_log.listening = False
        self.resting = 0
        self._rests.end()
        self.write_tracer.end()
        self._rested_since = perf_counter()
        self.module_calls.close()
        if self._installation is not None:
            self._installation.end()
            self._installation = None
        remove_saved_tensors_hooks(self.saved_tensors.hooks)

    def emit(self, event: Event, only: Collection[Detector] | None = None) -> None:
        """Tell the detectors that read this kind of event, or ``only`` these of them, in order."""
        listeners = self._listeners.awake.get(type(event))
        if listeners == ():
            return
        if not self.running and not (self.resting and isinstance(event, _HEARD_AT_REST)):
            return
        if listeners is None:
            with self._lock:
                listeners = self._listeners.awaken(type(event))
        if only is not None:
            listeners = tuple([each for each in listeners if each[0] in only])
        with self._locked_outside_user_modes() if function_mode_is_active() else self._lock:
            for detector, handle in listeners:
                try:
                    asked = handle(event)
                except Exception as error:  # noqa: BLE001, PERF203 - the user's program goes on
                    self._listeners.drop(detector)
                    self.note_failure(type(detector).__name__, error)
                else:
                    if asked is not None:
                        self._listeners.iteration(detector, type(event), asked)
        if self.heap.everything is not None:
            self.heap.forget()

    @contextmanager
    def _locked_outside_user_modes(self) -> Iterator[None]:
        """Lock, where what detectors ask of tensors is none of the business of a user's modes."""
        with self._lock, without_torch_function():
            yield

    def rouse(self, detector: Detector) -> None:
        """Tell this detector again of what it sleeps through."""
        with self._lock:
            self._listeners.rouse(detector)

    def rouse_all(self) -> None:
        """Tell everybody of everything again."""
        with self._lock:
            self._listeners.wake_all()

    def note_failure(self, where: str, error: Exception) -> None:
        """Keep a mistake of ours for the report."""
        self.failures.note(where, error)

    def passes_over_backward(self) -> bool:
        """Return whether nobody is to be told of the backward that begins, before the first step.

        So it is with seven of eight after the first in a program that has no optimizer: checks of
        gradients make thousands, each of less time than it takes to tell of them.
        """
        return not (
            self.backwards < _BACKWARDS_OF_THE_FIRST_STEP
            or self.backwards % _TOLD_OF == 0
            or self.write_tracer.armed
            or self.optimizers.any_known
        )

    def count_backward(self) -> int:
        """Count an outermost backward that begins, and return its number."""
        number = self.backwards
        self.backwards += 1
        if not self.step and self.backwards > _BACKWARDS_OF_THE_FIRST_STEP:
            self._begin_iteration(self.iteration + 1)
        return number

    def _begin_iteration(self, iteration: int) -> None:
        # The first step of a program that went on without any until then.
        anew = iteration < self.iteration
        self.iteration = iteration
        if iteration >= self._listeners.due:
            with self._lock:
                self._listeners.wake_due(iteration)
        saved = self.saved_tensors
        asked = saved.take_fingerprints or saved.want_fingerprints or self.write_tracer.armed
        if asked or anew or iteration >= self._next_checksums:
            self._set_fingerprints()

    def after_optimizer_step(self, optimizer: Optimizer, site: CallSite | None) -> None:
        """Count a finished ``optimizer.step()``."""
        self.optimizer_steps += 1
        step = self.step if self._steps_are_marked else self.step + 1
        sequence = self.clock.after_step(step)
        self.recent_steps.append(OptimizerStep(sequence, weakref.ref(optimizer), site))

    def end_step(self, optimizer: Optimizer) -> None:
        """Begin the next step, if optimizers count them."""
        if self._steps_are_marked:
            return
        self._next_step()
        if self.step >= self._rests.next and self.running:
            self._rest(optimizer)

    def mark_step(self) -> None:
        """Count a step that the program has told of; from now on, only such steps count."""
        self._steps_are_marked = True
        self.clock.after_step(self.step + 1)
        self.emit(StepMarked(number=self.step, site=call_site()))
        self._next_step()

    def _rest(self, optimizer: Optimizer) -> None:
        """Watch nothing for some steps, if this is a loop and a time for that."""
        if not self._may_rest():
            self._rests.postpone(self.step)
            return
        length = self._rests.length(self.step)
        if self.options.checksum_every:
            length = min(length, self._next_checksums - self.step)
        if length > 0:
            self._rests.begin()
            self._rests_after = weakref.ref(optimizer)
            self.resting = length
            self.running = self.write_log.listening = False
            remove_saved_tensors_hooks(self.saved_tensors.hooks)

    def _may_rest(self) -> bool:
        """Return whether nobody is at anything that the next steps have a part in."""
        saved = self.saved_tensors
        top = top_saved_tensors_hooks()
        return (
            self.generations.living <= _MOST_LIVING
            and len(self.optimizers.known()) == 1
            and not (saved.take_fingerprints or saved.want_fingerprints or self.write_tracer.armed)
            and top is not None
            and top[0] is saved.hooks[0]
            and threading.get_ident() == self.thread
            and not inside_backward()
            and not self._listeners.any_following()
        )

    def passes_over(self, optimizer: Optimizer) -> bool:
        """Count a finished step that was not watched; False if this is the last of them."""
        self._rests.take_time(self.step, perf_counter(), watched=False)
        self.passed_over += 1
        known = None if self._rests_after is None else self._rests_after()
        if (self.resting == 1 or known is not optimizer) and self.wake():
            return False
        self.resting = max(1, self.resting - 1)
        self.optimizer_steps += 1
        self.step += 1
        self.iteration = self.step
        return True

    def wake(self) -> bool:
        """Watch again, if the audit rests; return whether it watches now."""
        if self.running or not self.resting:
            return self.running
        if inside_backward() or threading.get_ident() != self.thread:
            return False
        if saved_tensors_hooks_are_disabled() or top_saved_tensors_hooks() is not None:
            return False
        self.resting = 0
        self._rests.end()
        self.running = self.write_log.listening = True
        push_saved_tensors_hooks(*self.saved_tensors.hooks)
        self.emit(WatchResumed())
        return True

    def _next_step(self) -> None:
        self.step += 1
        self._rests.take_time(self.step, perf_counter(), watched=True)
        limit = self.options.max_steps
        if limit is not None and self.step >= limit:
            self.iteration = self.step
            self._finish()
            return
        if self.step % _FORGETS_EVERY == 0:
            self.write_log.forget_before(self.generations.oldest_save)
        self._begin_iteration(self.step)

    def _finish(self) -> None:
        """Watch no more: what torch is going through now is taken away when the audit is left."""
        self.emit(SessionEnded(failed=False))
        self.finished = True
        self.running = self.write_log.listening = False
        self.write_tracer.end()
        remove_saved_tensors_hooks(self.saved_tensors.hooks)

    def _set_fingerprints(self) -> None:
        saved = self.saved_tensors
        now = perf_counter()
        share = saved.checksum_seconds / max(now - self._began, 1e-9)
        last = min(self._last_checksums, self.iteration)
        due = self.options.checksums_on(self.iteration, last=last, share=share)
        is_suspicious = saved.want_fingerprints or self.write_tracer.armed
        saved.take_fingerprints = due or is_suspicious
        saved.want_fingerprints = False
        saved.begin_iteration(self.iteration, is_suspicious=is_suspicious)
        if saved.take_fingerprints:
            self._last_checksums = self.iteration
        self._next_checksums = self.options.checksums_from(
            self.iteration, last=self._last_checksums
        )


@cache
def _idle() -> Recorder:
    return Recorder(AuditOptions())


def _under(lock: threading.RLock, do: Callable[[], None]) -> None:
    with lock:
        do()
