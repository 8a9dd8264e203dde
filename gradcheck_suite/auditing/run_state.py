"""How far a run has come: the one count that orders what happens, and what was counted so far."""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    import weakref

    from torch.optim import Optimizer

    from gradcheck_suite.auditing.call_sites import CallSite

__all__ = ["Birth", "Clock", "Moment", "OptimizerStep", "RunState", "Turn"]

_KEPT_STEPS: Final = 256
"""Finished steps that are remembered, to name one between a save and a use. A bound on memory: a
graph is mostly used within a step or two."""

_new_object = object.__new__


class Turn:
    """The time between two backwards; lives for as long as a tensor that was saved in it.

    Attributes:
        index: the number of the backward that ends it.
        step: the number of optimizer steps finished when it began.
    """

    __slots__ = ("__weakref__", "index", "step")

    def __init__(self, index: int, step: int) -> None:
        self.index = index
        self.step = step


class Birth:
    """The part of a turn up to, or from, the call of an outermost module.

    It lives for as long as a tensor that was saved in it.

    Attributes:
        turn: what it is a part of.
        sequence: the number that it began with.
        call: how many calls of outermost modules had been noted by then.
    """

    __slots__ = ("__weakref__", "call", "sequence", "turn")

    def __init__(self, turn: Turn, sequence: int, call: int) -> None:
        self.turn = turn
        self.sequence = sequence
        self.call = call


class Moment:
    """A time at which nothing but saving happened; one object for all that was saved in it.

    Attributes:
        sequence: the number of the last write, step or backward before it.
        birth: the part of the time between two backwards that it lies in.
        step: the number of optimizer steps finished by then.
    """

    __slots__ = ("birth", "sequence", "step")

    def __init__(self, sequence: int, birth: Birth, step: int) -> None:
        self.sequence = sequence
        self.birth = birth
        self.step = step


class Clock:
    """Counts writes, steps and backwards in the order in which they happen.

    Saving a tensor does not move it: a saved tensor keeps the current moment, and whatever happens
    to its memory afterwards has a greater number.

    Attributes:
        moment: the current moment.
    """

    __slots__ = ("moment",)

    def __init__(self) -> None:
        self.moment = Moment(0, Birth(Turn(0, 0), 0, 0), 0)

    def tick(self) -> int:
        """Begin a new moment and return its number."""
        now = self.moment
        # Every write comes here: what does without `__init__` takes a third of the time.
        moment = self.moment = _new_object(Moment)
        sequence = moment.sequence = now.sequence + 1
        moment.birth = now.birth
        moment.step = now.step
        return sequence

    def after_backward(self, index: int) -> Birth:
        """Begin the time before backward number ``index``."""
        now = self.moment
        birth = Birth(Turn(index, now.step), now.sequence + 1, now.birth.call)
        self.moment = Moment(birth.sequence, birth, now.step)
        return birth

    def before_call(self) -> Birth:
        """Begin the time from the call of an outermost module on."""
        now = self.moment
        birth = Birth(now.birth.turn, now.sequence + 1, now.birth.call + 1)
        self.moment = Moment(birth.sequence, birth, now.step)
        return birth

    def after_step(self, step: int) -> int:
        """Begin the time in which ``step`` steps are finished, and return its number."""
        now = self.moment
        self.moment = Moment(now.sequence + 1, now.birth, step)
        return now.sequence + 1


class OptimizerStep(NamedTuple):
    """A finished step, for telling which optimizer wrote a parameter and where."""

    sequence: int
    optimizer: weakref.ref[Optimizer]
    site: CallSite | None


class RunState:
    """What has happened in a run so far, and whether the audit watches it.

    Attributes:
        clock: the one count that orders saves, writes, steps and backwards.
        step: the number of finished steps.
        iteration: how far the run has come, for deciding how closely to look at it: the step, and
            in a program that goes on without any, such as a test, the backwards.
        optimizer_steps: the number of finished ``optimizer.step()``, whatever counts as a step.
        recent_steps: the last of these.
        backwards: the number of outermost backwards begun.
        backward_called: where the backward that runs was called, and at which line of the user's
            that is told; the two differ where a library has called it.
        last_forward: the user's lines that have last called a module from outside of all modules,
            innermost first, and how many backwards had begun by then; None if none is known.
        thread: the one on which the audit was begun.
        running: whether the audit watches now.
        paused_for: for how many more steps it does not, of its own accord.
        skipped_steps: the number of finished steps that it has not watched.
        installed: whether anything of torch is replaced.
        finished: whether as many steps are done as were to be watched.
        saved: how many tensors were saved.
        take_fingerprints: whether to note the contents of what is saved now.
        want_fingerprints: whether to note them from the next iteration on, on suspicion.
        is_aside: whether hooks on saved tensors are to be put back when the backward has ended.
        left_hooks: why saved tensors are not audited; None where they are.
        hook_regions: how many regions ran under saved-tensors hooks of the program's own.
        transform_regions: how many calls of torch.func transforms ran under none.
        backwards_elsewhere: how many backwards began on other threads.
        children: how many child processes were started, by what started them.
    """

    def __init__(self) -> None:
        self.clock = Clock()
        self.step = self.iteration = self.optimizer_steps = self.backwards = self.thread = 0
        self.backward_called: tuple[CallSite | None, CallSite | None] = (None, None)
        self.last_forward: tuple[tuple[CallSite, ...], int] | None = None
        self.recent_steps: deque[OptimizerStep] = deque(maxlen=_KEPT_STEPS)
        self.running = self.installed = self.finished = False
        self.paused_for = self.skipped_steps = 0
        self.saved = 0
        self.take_fingerprints = self.want_fingerprints = self.is_aside = False
        self.left_hooks: str | None = None
        self.hook_regions = self.transform_regions = self.backwards_elsewhere = 0
        self.children: Counter[str] = Counter()

    def told_for(self, site: CallSite | None) -> CallSite | None:
        """Return the line to tell of what happens at this one while a backward runs."""
        called, told = self.backward_called
        is_call = site is not None and called is not None and site[:2] == called[:2]
        return told if is_call else site
